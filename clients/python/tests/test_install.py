"""The package as pip installs it."""
import os
import shutil
import subprocess
import sys

from conftest import here


def test_the_installed_package_has_all_files(tmp_path):
    source, site = tmp_path / "source", tmp_path / "site"
    shutil.copytree(here.parent, source)  # pip leaves files in the folder
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index", "--no-build-isolation", "--target", site, source]
    subprocess.run(pip, check=True)
    assert (site / "cdc_relay/py.typed").exists()
    for folder in "templates", "management":
        names = {file.relative_to(here.parent) for file in (here.parent / "cdc_relay/django" / folder).rglob("*.*") if file.suffix != ".pyc"}
        assert names and {name for name in names if not (site / name).exists()} == set()
    (tmp_path / "conftest.py").write_text('pytest_plugins = ["cdc_relay.pytest_plugin"]')
    found = subprocess.run(
        [sys.executable, "-m", "pytest", "--fixtures", "-p", "no:cacheprovider", "-p", "no:django"],
        cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(site)}, capture_output=True, text=True,
    )  # fmt: skip
    assert "assert_task_sent" in found.stdout, found.stdout + found.stderr
