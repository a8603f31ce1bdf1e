"""The public plan and the directory: both spellings, every rule, atomic writing."""

import copy
import json

import fuzz_plans
import pytest
from spyrecode_samples import SAMPLES, add_rows

from torch_loom.spyrecode import SpyreCodeError, encode, plan, read_dir, write_dir
from torch_loom.spyrecode.directory import read_image

BASE = 120259084288

# The example of docs/spyrecode.md: 12 KiB, of which 2 KiB take the value table.
EXAMPLE = {
    "JobPreparationPlan": [
        {"command": "Allocate", "properties": {"size": "12288"}},
        {
            "command": "InitTransfer",
            "properties": {"init_bin_file": "init_binary.bin", "dev_ptr": "120259086336", "size": "10240"},
        },
    ],
    "JobExecPlan": [
        {
            "command": "ComputeOnHost",
            "properties": {
                "ihandle": "",
                "ishape": ["3"],
                "ohandle": "values",
                "size": "2048",
                "hcm": {"vdci": {}, "senConstants": []},
            },
        },
        {
            "command": "DataTransfer",
            "properties": {
                "dirn": "false",
                "host_handle": "values",
                "dev_ptr": "120259084288",
                "size": "2048",
            },
        },
        {"command": "ComputeOnDevice", "properties": {"job_bin_ptr": "120259086336", "name": "add_rows"}},
    ],
}


def test_the_example_loads():
    loaded = plan.loads(json.dumps(EXAMPLE))
    assert loaded.preparation == (
        plan.Allocate(12288),
        plan.InitTransfer("init_binary.bin", BASE + 2048, 10240),
    )
    host, transfer, compute = loaded.execution
    assert isinstance(host, plan.ComputeOnHost)
    assert host.ishape == (3,)
    assert transfer == plan.DataTransfer(False, "values", BASE, 2048)
    assert compute == plan.ComputeOnDevice(BASE + 2048, "add_rows")
    assert json.loads(loaded.to_json()) == EXAMPLE


def test_both_spellings_load_to_the_same_plan():
    other = copy.deepcopy(EXAMPLE)
    init = other["JobPreparationPlan"][1]["properties"]
    init["file_path"] = init.pop("init_bin_file")
    host = other["JobExecPlan"][0]["properties"]
    host["oshape"], host["iargs"] = host.pop("ohandle"), host.pop("ishape")
    del host["ihandle"]
    move = other["JobExecPlan"][1]["properties"]
    move["direction"] = {"false": "0"}[move.pop("dirn")]
    assert plan.loads(json.dumps(other)) == plan.loads(json.dumps(EXAMPLE))


def test_the_smallest_plan():
    small = {
        "JobPreparationPlan": EXAMPLE["JobPreparationPlan"],
        "JobExecPlan": [{"command": "ComputeOnDevice", "properties": {"job_bin_ptr": str(BASE + 2048)}}],
    }
    assert plan.loads(json.dumps(small)).execution == (plan.ComputeOnDevice(BASE + 2048),)


def broken(change):
    data = copy.deepcopy(EXAMPLE)
    change(data)
    return json.dumps(data)


def props(data, part, index):
    return data["JobPreparationPlan" if part == "prep" else "JobExecPlan"][index]["properties"]


def setter(part, index, **values):
    def change(data):
        props(data, part, index).update(values)

    return change


def remove(part, index, key):
    return lambda data: props(data, part, index).pop(key)


PREP, EXEC = "JobPreparationPlan", "JobExecPlan"
RULES = [
    ("SC-E01", lambda d: d.pop(EXEC), "array JobExecPlan is missing"),
    ("SC-E01", lambda d: d[PREP].pop(), "has 1 entries"),
    ("SC-E01", lambda d: d[PREP].reverse(), "must start with its only Allocate"),
    ("SC-E01", lambda d: d[PREP].append(d[PREP][0]), "must start with its only Allocate"),
    ("SC-E01", lambda d: d[EXEC].clear(), "has 0 entries"),
    ("SC-E02", lambda d: d[EXEC][0].update(command="Dance"), "unknown command 'Dance'"),
    ("SC-E02", lambda d: d[EXEC].append(d[PREP][0]), "not allowed in JobExecPlan"),
    ("SC-E02", lambda d: d[EXEC].append(7), "an object with a command is expected"),
    ("SC-E02", lambda d: d[EXEC][2].update(properties=[]), "properties must be an object"),
    ("SC-E02", remove("exec", 0, "size"), "property size is missing"),
    ("SC-E02", remove("exec", 0, "hcm"), "property hcm is missing"),
    ("SC-E03", setter("prep", 0, size=12288), "a decimal string is expected"),
    ("SC-E03", setter("prep", 0, size="0x3000"), "a decimal string is expected"),
    ("SC-E03", setter("prep", 0, size="-5"), "a decimal string is expected"),
    ("SC-E03", setter("prep", 0, size="007"), "a decimal string is expected"),
    ("SC-E03", setter("prep", 0, size="9" * 5000), "a decimal string is expected"),
    ("SC-E03", setter("exec", 1, dirn="maybe"), '"false" or "true" is expected'),
    ("SC-E03", setter("prep", 1, init_bin_file=5), "a string is expected"),
    ("SC-E05", setter("prep", 1, dev_ptr="2048"), "outside segment 7"),
    ("SC-E05", setter("prep", 1, size="10368"), "leaves the allocation"),
    ("SC-E05", setter("exec", 2, job_bin_ptr=str(BASE + 12288)), "leaves the allocation"),
    ("SC-E05", setter("prep", 0, size=str(1 << 40)), "does not fit segment 7"),
    ("SC-E06", lambda d: d[PREP].append(d[PREP][1]), "overlaps another InitTransfer"),
    ("SC-E06", setter("exec", 1, dev_ptr=str(BASE + 128)), "correction area overlaps"),
    ("SC-E07", setter("exec", 2, job_bin_ptr=str(BASE + 2049)), "not a multiple of 128"),
    ("SC-E08", setter("exec", 1, host_handle="other"), "does not exist yet"),
    ("SC-E08", setter("exec", 0, ihandle="ghost"), "does not exist yet"),
    ("SC-E08", setter("exec", 0, ohandle=""), "needs a name"),
    (
        "SC-E08",
        lambda d: d[EXEC].insert(0, {**d[EXEC][0], "properties": {**d[EXEC][0]["properties"], "size": "4"}}),
        "exists with 4 bytes",
    ),
    ("SC-E09", lambda d: d[EXEC].pop(1), "must be followed by"),
    ("SC-E09", lambda d: d[EXEC].pop(), "must be followed by"),
    ("SC-E10", setter("exec", 0, ishape=["0", "1"]), 'mixes "0"'),
    ("SC-E10", setter("exec", 0, ishape=["x"]), "a decimal string is expected"),
    ("SC-E10", setter("exec", 0, ishape="3"), "a list is expected"),
    ("SC-E10", setter("exec", 0, size="1024"), "exceeds host buffer 'values' of 1024 bytes"),
]


@pytest.mark.parametrize(("code", "change", "words"), RULES, ids=[f"{c}-{i}" for i, (c, _, _) in enumerate(RULES)])
def test_every_rule_has_a_violating_plan(code, change, words):
    with pytest.raises(SpyreCodeError, match=words) as error:
        plan.loads(broken(change), "somewhere/spyrecode.json")
    assert error.value.code == code
    assert "somewhere/spyrecode.json" in str(error.value)


@pytest.mark.parametrize("text", ["", "{", "[]", "7", '"x"', "[" * 100000])
def test_text_that_is_no_plan(text):
    with pytest.raises(SpyreCodeError) as error:
        plan.loads(text)
    assert error.value.code == "SC-E01"


@pytest.mark.parametrize("name", SAMPLES)
def test_directories_round_trip(tmp_path, name):
    program = SAMPLES[name]()
    image = write_dir(tmp_path / "deep" / "kernel", program, debug={"dataflow.mlir": "module {}"})
    assert image == encode(program)
    assert read_dir(tmp_path / "deep" / "kernel") == program
    assert (tmp_path / "deep/kernel/debug/dataflow.mlir").read_text() == "module {}"
    assert [p.name for p in (tmp_path / "deep").iterdir()] == ["kernel"]


def test_writing_again_replaces_the_directory(tmp_path):
    write_dir(tmp_path / "k", SAMPLES["map"](), debug={"old.txt": "old"})
    write_dir(tmp_path / "k", add_rows())
    assert read_dir(tmp_path / "k") == add_rows()
    assert not (tmp_path / "k" / "debug").exists()
    assert [p.name for p in tmp_path.iterdir()] == ["k"]


def test_a_failed_write_leaves_nothing(tmp_path):
    with pytest.raises(ValueError, match="plain file name"):
        write_dir(tmp_path / "k", add_rows(), debug={"../x": ""})
    (tmp_path / "file").write_text("")
    with pytest.raises(OSError):
        write_dir(tmp_path / "file" / "k", add_rows())
    assert [p.name for p in tmp_path.iterdir()] == ["file"]


def test_missing_short_and_closed_images(tmp_path):
    write_dir(tmp_path / "k", add_rows())
    image = tmp_path / "k/spyreCodeDir/init_binary.bin"
    data = image.read_bytes()
    image.write_bytes(data[:-1])
    with pytest.raises(SpyreCodeError, match=f"has {len(data) - 1} bytes, {len(data)} expected") as error:
        read_dir(tmp_path / "k")
    assert error.value.code == "SC-E04"
    image.write_bytes(bytes(len(data)))
    with pytest.raises(SpyreCodeError, match="a closed image") as error:
        read_image(tmp_path / "k")
    assert error.value.code == "SC-E15"
    image.unlink()
    with pytest.raises(SpyreCodeError, match="does not exist"):
        read_dir(tmp_path / "k")


def test_an_image_outside_the_directory_is_not_read(tmp_path):
    write_dir(tmp_path / "k", add_rows())
    plan_file = tmp_path / "k/spyreCodeDir/spyrecode.json"
    plan_file.write_text(plan_file.read_text().replace("init_binary.bin", "../../secret"))
    with pytest.raises(SpyreCodeError, match="must be a file beside the plan") as error:
        read_dir(tmp_path / "k")
    assert error.value.code == "SC-E04"


def test_a_folder_that_is_no_program(tmp_path):
    with pytest.raises(SpyreCodeError, match="folder spyreCodeDir is missing"):
        read_dir(tmp_path)


def test_mutated_plans_and_directories_load_or_are_refused_with_one_error():
    """A short run of the fuzzer; ``python tests/spyrecode/fuzz_plans.py 200000`` is the long one."""
    ends = fuzz_plans.run(1500)
    assert ends["accepted"] > 50 and ends["directory accepted"] > 50
    reached = {e.removeprefix("directory ") for e in ends}
    assert reached >= {f"SC-E{n:02}" for n in range(1, 11)}


def nested(depth: int) -> str:
    plan_text = copy.deepcopy(EXAMPLE)
    plan_text["JobExecPlan"][0]["properties"]["hcm"] = "HERE"
    return json.dumps(plan_text).replace('"HERE"', '{"a":' * depth + "0" + "}" * depth)


@pytest.mark.parametrize(
    ("text", "code", "message"),
    [
        (json.dumps(EXAMPLE).replace('"3"', "1" * 5000), "SC-E01", "not valid JSON"),
        (json.dumps(EXAMPLE).replace('"vdci": {}', '"vdci": NaN'), "SC-E01", "NaN is no JSON number"),
        (nested(100_000), "SC-E01", "not valid JSON"),
        (nested(33), "SC-E02", "deeper than 32 levels"),
        (json.dumps(EXAMPLE).replace("DataTransfer", "\\ud800"), "SC-E02", "unknown command '.ud800'"),
    ],
)
def test_text_that_json_itself_stumbles_over(text, code, message):
    with pytest.raises(SpyreCodeError, match=message) as error:
        plan.loads(text)
    assert error.value.code == code
    str(error.value).encode("utf-8")


def test_nesting_within_the_limit_loads_and_prints():
    loaded = plan.loads(nested(32))
    assert plan.loads(loaded.to_json()) == loaded


@pytest.mark.parametrize("name", ["x" * 300, "\ud800", "a\nb", "\x00"])
def test_image_names_that_no_file_system_takes_are_refused(name, tmp_path):
    write_dir(tmp_path / "k", add_rows())
    file = tmp_path / "k" / "spyreCodeDir" / "spyrecode.json"
    top = json.loads(file.read_text())
    top["JobPreparationPlan"][1]["properties"]["init_bin_file"] = name
    file.write_text(json.dumps(top))
    with pytest.raises(SpyreCodeError, match="must be a file beside the plan") as error:
        read_dir(tmp_path / "k")
    assert error.value.code == "SC-E04"
