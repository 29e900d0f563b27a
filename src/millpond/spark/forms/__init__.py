"""The forms in which a shard's rows reach a processor: one module a form, behind one seam (`forms.form.Form`).

A form is chosen by the operator's spec (`forms.choice.form_of`), and nothing outside this package asks which it is.
"""
