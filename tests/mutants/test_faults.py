"""The list of faults cannot rot: each can still be put where it belongs."""

import ast

import pytest
import yaml
from mutants.faults import FAULTS, ROOT, Fault, all_faults


def test_every_fault_can_still_be_put_in():
    for fault in all_faults():
        text = (ROOT / "konsil" / fault.file).read_text()
        faulty = fault.put_into(text)
        if not fault.file.endswith(".py"):
            assert yaml.safe_load(faulty) != yaml.safe_load(text), fault
            continue
        assert ast.dump(ast.parse(faulty)) != ast.dump(ast.parse(text)), fault


def test_every_fault_has_a_name_of_its_own_and_tests():
    faults = all_faults()
    assert len({str(fault) for fault in faults}) == len(faults)
    for fault in faults:
        assert all((ROOT / "tests" / test).is_file() for test in fault.tests), fault


def test_every_method_has_faults():
    files = {f"methods/{path.name}" for path in (ROOT / "konsil/methods").glob("[!_]*.py")}
    assert files <= FAULTS.keys()


@pytest.mark.parametrize("text", ["", "a = 1; a = 1"])
def test_an_old_text_that_is_not_there_exactly_once_is_an_error(text):
    with pytest.raises(ValueError, match="not once"):
        Fault("methods/x.py", "a fault", "a = 1", "a = 2").put_into(text)
