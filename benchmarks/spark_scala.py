"""Spark's Scala `transformWithState`, as a peer: compiled with the compiler that lies among PySpark's jars.

The processor is a few lines of Scala in the file beside this one. It is compiled once, before a session starts, since
the session must find its classes.
"""

import subprocess
from functools import cache
from pathlib import Path
from tempfile import mkdtemp

import pyspark
from pyspark.sql import DataFrame

from millpond.spark.environment.java import find_java

_SOURCE = Path(__file__).with_suffix(".scala")
_JARS = Path(pyspark.__file__).parent / "jars"


@cache
def compiled() -> Path:
    """The folder of the compiled classes. It stays as long as the machine's temporary files do."""
    classes = Path(mkdtemp(prefix="millpond-scala-"))
    java = find_java().home / "bin" / "java"
    compiler = ["scala.tools.nsc.Main", "-usejavacp", "-d", str(classes), str(_SOURCE)]
    subprocess.run([str(java), "-cp", f"{_JARS}/*", *compiler], check=True)
    return classes


def spending(events: DataFrame) -> DataFrame:
    """The stream of answers over the stream of events, in a session that has the classes."""
    spark = events.sparkSession
    return DataFrame(spark.sparkContext._jvm.Spending.over(events._jdf), spark)  # noqa: SLF001 - a peer in the JVM
