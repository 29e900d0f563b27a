"""The forms in which a shard's rows reach a processor: one module for each form, behind the protocol `forms.form.Form`.

The operator's spec decides the form (`forms.choice.form_of`). No code outside this package depends on which it is.
"""
