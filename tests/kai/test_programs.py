"""Which programs of KAI-Scheduler the suite runs."""

from pathlib import Path

import pytest

from bowline.localcluster.assets.recipes import KAI_TOOLS
from bowline.localcluster.errors import AssetsError
from tests.kai.team import BIN_SETTING, chosen_crds, chosen_programs


@pytest.mark.parametrize("environ", [{}, {BIN_SETTING: ""}])
def test_no_folder_chooses_the_built_programs(environ: dict[str, str]) -> None:
    assert chosen_programs(environ) is None


def test_folder_chooses_its_programs(tmp_path: Path) -> None:
    for tool in KAI_TOOLS:
        (tmp_path / tool).touch(mode=0o755)
    assert chosen_programs({BIN_SETTING: str(tmp_path)}) == {tool: tmp_path / tool for tool in KAI_TOOLS}


def test_crds_beside_the_programs_are_chosen(tmp_path: Path) -> None:
    assert chosen_crds({}) is None
    assert chosen_crds({BIN_SETTING: str(tmp_path)}) is None
    (tmp_path / "crds").mkdir()
    assert chosen_crds({BIN_SETTING: str(tmp_path)}) == tmp_path / "crds"


def test_folder_without_a_program_is_an_error_that_names_it(tmp_path: Path) -> None:
    (tmp_path / KAI_TOOLS[0]).touch(mode=0o755)
    (tmp_path / KAI_TOOLS[1]).touch(mode=0o644)
    with pytest.raises(AssetsError, match=str(tmp_path / KAI_TOOLS[1])):
        chosen_programs({BIN_SETTING: str(tmp_path)})
