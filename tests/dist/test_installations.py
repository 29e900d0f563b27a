"""The wheel keeps what it and each extra promise, in an environment that has nothing else. Run by `make dist`."""

import re
import zipfile
from email import message_from_bytes
from textwrap import dedent

import pytest

from millpond.cli import COMMANDS
from tests.dist.conftest import COMPILED, ROOT, plain_wheel
from tests.test_docs import blocks
from tests.test_public_api import PUBLIC

pytestmark = [pytest.mark.dist, pytest.mark.timeout(200, func_only=True)]

USES = {
    "cli": """
        from millpond.__main__ import main
        sys.argv = ["millpond", "--version"]
        main()
    """,
    "connect": """
        from millpond.spark import keyed
        import pyspark.sql.connect.session
    """,
    "delta": """
        from millpond.lookup import DeltaScan
        with suppress(OptionError, UnavailableError):
            DeltaScan("not-there", keys=["code"])
    """,
    "demo": """
        from millpond.demo.show import show
    """,
    "otlp": """
        from millpond.metrics import PrometheusRecorder, otlp_push
        with otlp_push(PrometheusRecorder().families, "http://127.0.0.1:1/v1/metrics"):
            pass
    """,
    "pictures": """
        from pathlib import Path
        from millpond.cache.curves.picture import draw
        draw([], "no trace", Path("rates.png"))
    """,
    "features": """
        import datasketches, sqlglot
        from millpond.features import compile_group_by
    """,
    "iceberg": """
        from millpond.lookup import IcebergScan
        with suppress(OptionError, UnavailableError):
            IcebergScan("main", "flights.gates", keys=["code"], properties={"type": "rest", "uri": "http://127.0.0.1:1"})
    """,
    "lmdb": """
        from millpond.kv import Get, LmdbStore, Put
        store = LmdbStore("store")
        store.put_many("gates", [Put(b"JFK", b"1", 0)])
        assert store.get_many([Get("gates", b"JFK")])[0][0].value == b"1"
        store.close()
    """,
    "mysql": """
        from millpond.lookup import SqlLookup
        with suppress(UnavailableError):
            SqlLookup("mysql+pymysql://127.0.0.1:1/shop", "gates", ["code"], ["gate"]).open()
    """,
    "postgresql": """
        from millpond.lookup import SqlLookup
        with suppress(UnavailableError):
            SqlLookup("postgresql+psycopg://127.0.0.1:1/shop", "gates", ["code"], ["gate"]).open()
        import adbc_driver_postgresql.dbapi
    """,
    "redis": """
        import pyarrow as pa
        from millpond.lookup import RedisLookup
        text = lambda name: pa.schema([(name, pa.string())])
        with suppress(UnavailableError):
            RedisLookup("redis://127.0.0.1:1", "gates:{code}", text("code"), text("gate")).open()
    """,
    "rocksdb": """
        from millpond.state import Harness
        with Harness(Count, key=str, key_type=str, options={"state.backend.type": "rocksdb"}) as harness:
            harness.process("a")
            assert harness.state("count") == {"a": 1}
    """,
    "serving": """
        import urllib.request
        from millpond.kv import MemoryStore
        from millpond.serving import Fetcher, http_app, running_server
        with running_server(http_app(Fetcher(MemoryStore(), []))) as url:
            assert urllib.request.urlopen(url + "/health").status == 200
    """,
    "spark": """
        from millpond.spark import keyed
    """,
    "spillable": """
        from millpond.state import Harness
        with Harness(Count, key=str, key_type=str, options={"state.backend.type": "spillable"}) as harness:
            harness.process("a")
            assert harness.state("count") == {"a": 1}
    """,
    "sql": """
        from millpond.lookup import SqlLookup
        with suppress(OptionError):
            SqlLookup("sqlite:///shop.db", "gates", ["code"], ["gate"]).open()
    """,
}
"""What each extra is for, in the fewest lines; a server that is not there is met by its driver."""

PRELUDE = """
import sys
from contextlib import suppress
from millpond import OptionError, UnavailableError

class Count:
    def open(self, states):
        self.count = states.value("count", int, default=0)

    def process(self, key, record, context):
        self.count.update(self.count.get() + 1)
"""

SPARK = """
from millpond.spark import session
spark = session(master="local[1]", spark__ui__enabled="false", spark__sql__shuffle__partitions="1")
"""

VISITED = """
assert sorted(map(tuple, visits.collect())) == [("ada", 2), ("bob", 1)]
"""

NAMED_BY_ANOTHER = {
    "connect": "spark",  # PySpark says itself what its client of Spark Connect needs
    "mysql": "sql",
    "demo": None,  # `millpond demo` tells: see below
    "features": None,  # the definitions need nothing
}
"""What the plain package asks for first, where that is not the extra itself."""


def _use(extra):
    return PRELUDE + dedent(USES[extra])


def _until_first_shown(page):
    """The code of a page up to the first block that a reader sees and can run."""
    found = []
    for _, code in blocks(ROOT / page):
        found.append(code)
        if f"```python\n{code}```" in (ROOT / page).read_text():
            break
    return "\n".join(found)


def _under(heading, page):
    """The code under a heading of a page."""
    lines = (ROOT / page).read_text().split("\n")
    first = lines.index(heading)
    end = next((at for at in range(first + 1, len(lines)) if lines[at].startswith("## ")), len(lines))
    return "\n".join(code for line, code in blocks(ROOT / page) if first <= line < end)


def _metadata():
    wheel = plain_wheel()
    with zipfile.ZipFile(wheel) as opened:
        (name,) = (name for name in opened.namelist() if name.endswith(".dist-info/METADATA"))
        return message_from_bytes(opened.read(name))


def _succeeds(ran):
    assert ran.returncode == 0, ran.stderr
    return ran.stdout


def test_every_extra_has_its_use():
    assert sorted(_metadata().get_all("Provides-Extra")) == sorted(USES)


@pytest.mark.parametrize("package", sorted(PUBLIC))
def test_the_plain_package_has_every_public_name_and_sparks_extra_those_that_need_it(environment, tmp_path, package):
    code = f"import {package} as package\nfor name in {PUBLIC[package].split()}: getattr(package, name)"
    _succeeds(environment("spark" if package == "millpond.spark" else "").python(code, tmp_path))


@pytest.mark.parametrize("extra", sorted(USES))
def test_an_extra_has_what_its_part_needs(environment, tmp_path, extra):
    _succeeds(environment(extra).python(_use(extra), tmp_path))


@pytest.mark.parametrize("extra", sorted({*USES} - {"demo", "features", "cli"}))
def test_a_part_without_its_extra_says_which_one_to_install(environment, tmp_path, extra):
    ran = environment("").python(_use(extra), tmp_path)
    last = ran.stderr.strip().split("\n")[-1]
    assert last.startswith("millpond.errors.MissingDependencyError: ")
    assert re.search(rf"pip install ['\"]millpond\[{NAMED_BY_ANOTHER.get(extra, extra)}\]['\"]", last), last


def test_keyed_state_on_a_bare_pyspark_names_what_is_missing_and_its_extra(environment, tmp_path):
    code = dedent("""
        from pyspark.sql.streaming import StatefulProcessor
        from millpond.spark import keyed

        class Nothing(StatefulProcessor):
            def init(self, handle): pass
            def handleInputRows(self, key, rows, timers): return iter(())
            def close(self): pass

        df = spark.createDataFrame([("ada",)], "user string")
        keyed(df, "user").transformWithState(Nothing(), "user string", "Update", "None")
    """)
    ran = environment("", "pyspark").python(SPARK + code, tmp_path)
    assert re.search(
        r"^millpond\.errors\.MissingDependencyError: keyed state needs pandas and protobuf, .*"
        r'Run: pip install "millpond\[spark\]"$',
        ran.stderr,
        re.MULTILINE,
    ), ran.stderr


@pytest.mark.parametrize(("extra", "wanted"), [("", "cli"), ("cli", "demo")])
@pytest.mark.parametrize("command", [("millpond",), ("python", "-m", "millpond")], ids=" ".join)
def test_the_command_names_the_extra_that_is_missing_in_one_line(environment, tmp_path, command, extra, wanted):
    ran = environment(extra).run(*command, "demo", cwd=tmp_path)
    assert (ran.returncode, ran.stdout) == (2, "")
    assert re.fullmatch(rf'millpond: .* Run: pip install "millpond\[{wanted}\]"\n', ran.stderr)


@pytest.mark.parametrize("name", sorted(COMMANDS))
def test_every_command_has_its_help_or_names_the_extra_that_is_missing_in_one_line(environment, tmp_path, name):
    ran = environment("cli").run("millpond", name, "--help", cwd=tmp_path)
    named = re.fullmatch(r"millpond: .* pip install ['\"]millpond\[\w+\]['\"].*\n", ran.stderr)
    assert ran.returncode == (2 if named else 0), ran.stderr
    assert named or ran.stdout.startswith(f"Usage: millpond {name} ")


@pytest.mark.parametrize("command", [("millpond",), ("python", "-m", "millpond")], ids=" ".join)
def test_the_command_says_its_version(environment, tmp_path, command):
    version = _metadata()["Version"]
    assert _succeeds(environment("cli").run(*command, "--version", cwd=tmp_path)) == f"millpond, version {version}\n"


def test_the_doctor_of_an_environment_without_pyspark_says_how_to_install_it(environment, tmp_path):
    found = _succeeds(environment("cli").run("millpond", "doctor", cwd=tmp_path))
    assert "warning  PySpark: not installed" in found
    assert '→ pip install "millpond[spark]"' in found


@pytest.mark.parametrize(
    ("extra", "code"),
    [
        ("", _under("## Without Spark", "README.md")),
        ("", _until_first_shown("docs/how-to/state-without-spark.md")),
        ("sql", _until_first_shown("docs/how-to/lookup.md")),
        ("features", _until_first_shown("docs/how-to/features.md")),
        ("spark", SPARK + _under("## In your own stream", "README.md")),
        ("spark", SPARK + _under("## Change the session and one line", "docs/how-to/keyed-state.md") + VISITED),
        ("spark", _until_first_shown("docs/how-to/test-your-processor.md")),
    ],
    ids=[
        "README-plain",
        "state-without-spark",
        "lookup",
        "features",
        "README-stream",
        "keyed-state",
        "test-your-processor",
    ],
)
def test_the_first_code_of_the_page_runs_with_the_extra_that_it_names(environment, tmp_path, extra, code):
    assert code.strip()
    # What a reader gets of a package index.
    _succeeds(environment(f"{COMPILED},{extra}").python(code, tmp_path))


def test_the_readme_of_the_metadata_has_no_link_that_a_package_index_cannot_follow():
    readme = _metadata().get_payload()
    links = re.findall(r"\]\(([^)\s]+)\)", readme)
    assert len(links) > 5
    assert [link for link in links if not link.startswith(("https://", "#"))] == []
