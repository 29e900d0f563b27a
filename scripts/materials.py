"""What a release is made of: a bill of materials, and on request the advisories that are known of it.

    python scripts/materials.py PYTHON FOLDER                the packages of this interpreter, as CycloneDX
    python scripts/materials.py PYTHON FOLDER --advisories   and what the PyPI's advisories say of them, by network

`FOLDER/millpond.cdx.json` lists each package with its version, licence and what it depends on. It needs no network.
`FOLDER/advisories.json` is what pip-audit found; or, where the network did not answer, that nothing is known, and why.
"""

import argparse
import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
BIN = Path(sys.executable).parent
BILL, ADVISORIES = "millpond.cdx.json", "advisories.json"
_FOUND = 1
"""pip-audit's exit code where there are advisories."""


def write_bill(python: Path, folder: Path) -> dict[str, str]:
    """Write the bill of materials; the version of each package in it."""
    bill = folder / BILL
    project = ["--pyproject", str(ROOT / "pyproject.toml"), "--mc-type", "library"]
    command = [str(BIN / "cyclonedx-py"), "environment", *project, "--output-reproducible", "-o", str(bill)]
    subprocess.run([*command, str(python)], check=True)
    return {each["name"]: each["version"] for each in json.loads(bill.read_text())["components"]}


def write_advisories(python: Path, folder: Path) -> str:
    """Write what is known of the packages; one line for people. No network is no failure, and is said."""
    site = subprocess.run(
        [str(python), "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"],
        check=True,
        capture_output=True,
        text=True,
    ).stdout.strip()
    command = [str(BIN / "pip-audit"), "--path", site, "--format", "json", "--progress-spinner", "off"]
    ran = subprocess.run(command, check=False, capture_output=True, text=True)
    try:
        packages = json.loads(ran.stdout)["dependencies"] if ran.returncode in (0, _FOUND) else None
    except (json.JSONDecodeError, KeyError):
        packages = None
    if packages is None:
        why = (ran.stderr.strip().splitlines() or ["pip-audit said nothing"])[-1]
        (folder / ADVISORIES).write_text(json.dumps({"known": False, "why": why}, indent=1) + "\n")
        return f"advisories: not known ({why})"
    (folder / ADVISORIES).write_text(json.dumps({"known": True, "packages": packages}, indent=1) + "\n")
    affected = [f"{each['name']} {each['version']}" for each in packages if each.get("vulns")]
    return f"advisories: {len(affected)} of {len(packages)} packages{': ' if affected else ''}{', '.join(affected)}"


def main() -> None:
    """Write both."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("python", type=Path)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--advisories", action="store_true")
    given = parser.parse_args()
    given.folder.mkdir(parents=True, exist_ok=True)
    print(f"{given.folder / BILL}: {len(write_bill(given.python, given.folder))} packages")
    if given.advisories:
        print(write_advisories(given.python, given.folder))


if __name__ == "__main__":
    main()
