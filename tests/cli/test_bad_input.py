"""Every mistake of a caller is answered in one sentence, with the documented exit code, and changes no file."""

import json
import os
import re
from pathlib import Path

import pytest
from helpers import ask, fairdraw

from fairdraw._core.checks import Check
from fairdraw._run.loading import all_checks, load_sampler
from fairdraw.strategies import RejectionCase, RequestRecipe

# Loaded before pytester takes a snapshot of sys.modules: torch cannot be imported twice.
load_sampler("rejection/torch")
DISTRIBUTION = next(check.code for check in all_checks("statistical") if not isinstance(check, Check))

SAMPLERS = {
    "unknown name": ("oracel", r"a name that fairdraw list --samplers shows.*Did you mean rejection/oracle"),
    "unknown module": ("absent:make", r"absent:make.*No module named 'absent'"),
    "module that misses another": ("misses:make", r"misses.*No module named 'a_package_of_mine'.*misses\.py:1"),
    "module with a syntax error": ("ungrammatical:make", r"ungrammatical.*SyntaxError"),
    "module that leaves": ("leaving:make", r"leaving.*SystemExit: 0.*leaving\.py:1"),
    "unknown factory": ("third_party:absent", r"third_party:absent.*has no attribute absent"),
    "no factory": ("third_party", r"sampler='third_party', but .*or a path pkg\.module:factory"),
    "factory that is a list": ("third_party:calls", r"calls.*it gave list, which has no name.*Return fairdraw"),
    "factory that raises": ("third_party:make_boom", r"RuntimeError: no device.*third_party\.py:\d+ in make_boom"),
    "factory that leaves": ("third_party:make_exit", r"SystemExit: 0"),
    "factory that returns nothing": ("third_party:make_nothing", r"NoneType, which has no name.*Return fairdraw"),
    "known defect of no check": ("third_party:make_unknown_defect", r"known_defects=\['REJ999'\], but keys must be"),
}
"""What `--sampler` may be given, and the sentence that answers it."""

FILES = {
    "xfails absent": ("xfails", "absent", r"xfails file absent cannot be read: No such file"),
    "xfails is a folder": ("xfails", "folder", r"xfails file folder cannot be read: Is a directory"),
    "xfails is binary": ("xfails", "binary", r"xfails file binary is not text"),
    "xfails is a baseline": ("xfails", "baseline.json", r"xfails file baseline\.json is not TOML"),
    "xfails without a reason": ("xfails", "no-reason.toml", r"REJ101 gives no reason"),
    "xfails is text": ("xfails", "misses.py", r"xfails file misses\.py is not TOML"),
    "xfails with negative cases": ("xfails", "negative.toml", r"may say only cases, a whole number"),
    "xfails with cases alone": ("xfails", "cases.toml", r"REJ101 gives no reason"),
    "xfails are deep": ("xfails", "deep.toml", r"deep\.toml"),
    "xfails of no check": ("xfails", "no-check.toml", r"names REJ999, which is no check"),
    "baseline absent": ("baseline", "absent", r"baseline absent cannot be read: No such file"),
    "baseline is a folder": ("baseline", "folder", r"baseline folder cannot be read: Is a directory"),
    "baseline is binary": ("baseline", "binary", r"baseline binary is not text"),
    "baseline is a crash file": ("baseline", "crash.json", r"crash\.json is no baseline of fairdraw"),
    "baseline is no JSON": ("baseline", "misses.py", r"baseline misses\.py is not JSON"),
    "baseline is deep": ("baseline", "deep.json", r"deep\.json"),
    "baseline of no check": ("baseline", "unknown.json", r"names REJ999, which is no check"),
    "baseline is a list": ("baseline", "list.json", r"list\.json is no baseline of fairdraw"),
    "lines in no folder": ("json", "absent/run.jsonl", r"absent/run\.jsonl cannot be written: no such folder"),
    "lines under a file": ("json", "binary/run.jsonl", r"binary/run\.jsonl cannot be written: no such folder"),
    "lines where nobody may write": ("json", "/proc/run.jsonl", r"/proc/run\.jsonl cannot be written"),
    "lines are the baseline": ("json", "baseline.json", r"baseline\.json, but that is the file of .*baseline, too"),
    "lines over a link": ("html", "run.link", r"html=.*run\.link, but that is the file of .*json, too"),
    "page over a second name": ("html", "./folder/../run.jsonl", r"html=.*run\.jsonl, but that is the file of .*json"),
    "lines are a pipe": ("json", "pipe", r"json=.*pipe is a pipe, but the run writes it more than once"),
    "page is a folder": ("html", "folder", r"folder.*is a (folder|directory)"),
    "page in no folder": ("html", "absent/run.html", r"absent/run\.html cannot be written: no such folder"),
    "page where nobody may write": ("html", "/proc/run.html", r"/proc/run\.html cannot be written"),
}
"""Files that both ways in take, and the sentence that answers a wrong one."""

BESIDE = {
    ("json", "baseline.json"): "baseline=baseline.json",
    ("html", "run.link"): "json=run.jsonl",
    ("html", "./folder/../run.jsonl"): "json=run.jsonl",
}
"""Options of `FILES` that are wrong only beside another one."""


def options_of(option: str, path: str, prefix: str) -> list[str]:
    """The option, and the one beside which it is wrong."""
    return [prefix + text for text in (BESIDE.get((option, path)), f"{option}={path}") if text]


NUMBERS = [(option, one) for option in ("time-budget", "call-timeout") for one in ("nan", "inf", "-1", "1e300")]
NUMBERS += [("call-timeout", "0"), ("seed", "new"), ("profile", "huge"), ("only", "speed")]
"""Options that both ways in have, and numbers and words that are none for them."""

COMMANDS = {
    "rate is no number": ("check rejection/oracle --rate nan", r"'--rate': 'nan' is not a number"),
    "time of a request is no number": ("check rejection/oracle --timeout nan", r"'nan' is not a number"),
    "limit is no number": ("bench rejection/oracle --limit nan", r"'--limit': 'nan' is not a number"),
    "roofline is no number": ("bench rejection/oracle --roofline-min nan", r"'nan' is not a number"),
    "times in no folder": ("bench rejection/oracle --json /proc/b.json", r"/proc/b\.json cannot be written"),
    "times over history": ("bench rejection/oracle --json b --history ./b", r"=b, but that is the file of --json, too"),
    "too many workers": ("check rejection/oracle -n 100000", r"100000 is not in the range 0<=x<=256"),
    "shared file": ("check rejection/oracle rejection-oracle --json {sampler}", r"file of --json of rejection/oracle"),
    "ledger, lines": ("check rejection/oracle --ledger a.json --json a.json", r"but that is the file of --json, too"),
    "pictures under a file": ("check rejection/oracle --pictures binary/p", r"binary/p cannot be written"),
    "pictures are a file": ("check rejection/oracle --pictures binary", r"'binary' is a file"),
    "ledger is binary": ("check rejection/oracle --only statistical --seed 5 --ledger binary", r"--ledger: .*binary"),
    "ledger under a file": ("check rejection/oracle --ledger binary/l.json", r"binary/l\.json cannot be written"),
    "baseline exists": ("check rejection/oracle --write-baseline baseline.json", r"exists and is not overwritten"),
    "baseline in no folder": ("check rejection/oracle --write-baseline /proc/b.json", r"/proc/b\.json cannot be wri"),
    "lines are a folder": ("check rejection/oracle --json folder", r"'folder' is a directory"),
    "crash file absent": ("replay absent", r"absent cannot be replayed: it cannot be read: No such file"),
    "crash file is a folder": ("replay folder", r"folder cannot be replayed: it cannot be read: Is a directory"),
    "crash file is binary": ("replay binary", r"binary cannot be replayed: it is not JSON"),
    "crash file is deep": ("replay deep.json", r"deep\.json cannot be replayed"),
    "ledger is deep": ("check sampling/oracle --seed 5 --ledger deep.json", r"--ledger: .*deep"),
    "journal is deep": ("check http://127.0.0.1:9/v1 --journal deep.json -n 0", r"deep\.json"),
    "crash file is a baseline": ("replay baseline.json", r"baseline\.json cannot be replayed: it is not a crash"),
    "crash file is newer": ("replay newer.json", r"newer\.json cannot be replayed: its format is 99, newer"),
    "crash file of a gone check": ("replay crash.json", r"'REJ999' is no check of fairdraw"),
    "distribution with a batch": ("replay distribution.json", r"case cannot be built \(TypeError: Distribution"),
    "distribution without a profile": ("replay weekly.json", r"profile='weekly', but it must be.*smoke, ci"),
    "distribution without a number": ("replay many.json", r"num_draws='many', but it must be an integer"),
    "code without crash files": ("replay REJ103", r"has no crash file of REJ103"),
    "no such check": ("explain REJ999", r"'REJ999' is no check of fairdraw"),
    "no such reference": ("check rejection/oracle --reference oracel", "Did you mean rejection/oracle"),
    "no such option": ("check rejection/oracle --unknown", "No such option"),
    "no sampler": ("check", r"no SPEC, but a sampler must be named.*below \[tool\.fairdraw\]"),
    "skeleton of nothing": ("init absent:verify", r"importing absent raised ModuleNotFoundError"),
    "skeleton in a file": ("init third_party:beyond --contract rejection --folder binary/x", r"/x.*cannot be written"),
}
"""Commands, and the sentence that answers them."""


@pytest.fixture(autouse=True)
def here(third_party: Path, no_controls: None) -> Path:
    """A folder with the third party's module, and files that are something else than what they are given for."""
    crash = {"sampler": "rejection/oracle", "reference": None, "contract": "rejection", "case": {}, "seed": 1}
    crash |= {"effect": "", "format": "fairdraw-crash", "format_version": 1, "suite_version": "0.0.1"}
    texts = {
        "misses.py": "import a_package_of_mine\n",
        "ungrammatical.py": "def make(:\n",
        "leaving.py": "raise SystemExit(0)\n",
        "no-reason.toml": 'REJ101 = ""\n',
        "negative.toml": 'REJ101 = {reason = "r", cases = -1}',
        "cases.toml": "REJ101 = {cases = 3}",
        "unknown.json": json.dumps({"format": "fairdraw-baseline", "failed": {"REJ999": ""}}),
        "no-check.toml": 'REJ999 = "why"\n',
        "baseline.json": json.dumps({"format": "fairdraw-baseline", "sampler": "rejection/oracle", "failed": {}}),
        "crash.json": json.dumps({**crash, "check": "REJ999", "case": _smallest()}),
        "distribution.json": json.dumps({**crash, "check": DISTRIBUTION, "case": _smallest()}),
        "weekly.json": json.dumps({**crash, "check": DISTRIBUTION, "case": {"profile": "weekly", "num_draws": 1}}),
        "many.json": json.dumps({**crash, "check": DISTRIBUTION, "case": {"profile": "ci", "num_draws": "many"}}),
        "newer.json": json.dumps({**crash, "check": "REJ101", "format_version": 99}),
        "list.json": "[1, 2]",
        "deep.json": "[" * 100_000,
        "deep.toml": "a = " + "[" * 100_000,
    }
    for name, text in texts.items():
        (third_party / name).write_text(text)
    (third_party / "binary").write_bytes(b"\xff\xfe\x00")
    (third_party / "folder").mkdir()
    (third_party / "run.link").symlink_to("run.jsonl")
    os.mkfifo(third_party / "pipe")
    return third_party


def _smallest() -> dict[str, object]:
    return dict(RejectionCase(vocab_size=2, requests=(RequestRecipe(),)).to_json())


def contents(folder: Path) -> dict[Path, tuple[bytes, int]]:
    """Every file below, with its bytes and the time of its last change; what Python compiles is left out."""
    files = [path for path in folder.rglob("*") if path.is_file() and "__pycache__" not in path.parts]
    return {path: (path.read_bytes(), path.stat().st_mtime_ns) for path in files}


def require_refused(words: list[str], sentence: str, here: Path) -> None:
    before = contents(here)
    result = fairdraw(*words)
    assert result.exit_code == 2, result.output
    assert isinstance(result.exception, SystemExit)
    message = result.output.splitlines()[-1]
    assert re.search(sentence, message), result.output
    assert "Traceback" not in result.output
    assert [line for line in result.output.splitlines() if not line.startswith(("Usage:", "Try "))][-1:] == [message]
    assert contents(here) == before


@pytest.mark.parametrize(("spec", "sentence"), SAMPLERS.values(), ids=SAMPLERS)
def test_sampler_is_refused(spec: str, sentence: str, here: Path) -> None:
    require_refused(["check", spec, "-k", "REJ101"], sentence, here)


@pytest.mark.parametrize(("option", "path", "sentence"), FILES.values(), ids=FILES)
def test_file_is_refused(option: str, path: str, sentence: str, here: Path) -> None:
    require_refused(["check", "rejection/oracle", "-k", "REJ101", *options_of(option, path, "--")], sentence, here)


@pytest.mark.parametrize(("option", "number"), NUMBERS)
def test_number_is_refused(option: str, number: str, here: Path) -> None:
    require_refused(["check", "rejection/oracle", f"--{option}={number}"], f"'--{option}': ", here)


@pytest.mark.usefixtures("beside")
@pytest.mark.parametrize(("option", "number"), NUMBERS)
def test_number_is_refused_by_pytest(option: str, number: str, pytester: pytest.Pytester) -> None:
    result = ask(pytester, f"--fairdraw-{option}={number}")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    assert re.search(f"error: argument --fairdraw-{option}: .*'{number}'", result.stderr.str())


@pytest.mark.usefixtures("beside")
def test_file_of_pytest_is_not_written_over(pytester: pytest.Pytester) -> None:
    options = ("--sampler", "rejection/oracle", "--junitxml=run", "--fairdraw-html=run")
    require_usage_error(ask(pytester, *options), "--fairdraw-html=run, but that is the file of --junitxml, too")


@pytest.mark.parametrize(("words", "sentence"), COMMANDS.values(), ids=COMMANDS)
def test_command_is_refused(words: str, sentence: str, here: Path) -> None:
    require_refused(words.split(), sentence, here)


def require_usage_error(result: pytest.RunResult, sentence: str) -> None:
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    assert re.search(sentence, result.stderr.str()), result.stderr.str()
    assert "Traceback" not in result.stderr.str() + result.stdout.str()
    assert len([line for line in result.errlines if line.strip()]) == 1


@pytest.fixture
def beside(here: Path, pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The same files in pytester's folder."""
    for path in here.iterdir():
        path.rename(pytester.path / path.name)
    monkeypatch.chdir(pytester.path)
    monkeypatch.syspath_prepend(str(pytester.path))
    return pytester.path


@pytest.mark.usefixtures("beside")
@pytest.mark.parametrize(("spec", "sentence"), SAMPLERS.values(), ids=SAMPLERS)
def test_sampler_is_refused_by_pytest(spec: str, sentence: str, pytester: pytest.Pytester) -> None:
    require_usage_error(ask(pytester, "--sampler", spec), sentence)


@pytest.mark.parametrize(("option", "path", "sentence"), FILES.values(), ids=FILES)
def test_pytest_refuses_file(option: str, path: str, sentence: str, beside: Path, pytester: pytest.Pytester) -> None:
    before = contents(beside)
    options = options_of(option, path, "--fairdraw-")
    require_usage_error(ask(pytester, "--sampler", "rejection/oracle", *options), sentence)
    assert {path: before[path] for path in before if path.name != "test_ask.py"}.items() <= contents(beside).items()


def test_answer_of_the_wrong_type_is_red_and_says_what_an_output_is() -> None:
    result = fairdraw("check", "third_party:make_list", "-k", "REJ101", "-k", "REJ102")
    assert result.exit_code == 1
    assert "REJ100 sampler returned something that is not an output" in result.output
    assert "effect: verify: sampler=returns a list returned list, but it must return a tensor." in result.output
    assert "An output is an int32 tensor [batch_size, max_spec_len + 1]" in result.output


def test_crash_folder_that_cannot_be_made_costs_the_crash_file_alone(here: Path) -> None:
    (here / ".fairdraw").write_text("mine")
    result = fairdraw("check", "third_party:make_beyond", "-k", "REJ101", "--profile", "smoke")
    assert result.exit_code == 1
    assert "note: no crash file was written: " in result.output
    assert (here / ".fairdraw").read_text() == "mine"
