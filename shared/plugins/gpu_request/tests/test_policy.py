"""The policy's file in the chart; what the policy says is tested on an API server, in tests/chart."""

from pathlib import Path

import pytest

from shared.plugins.gpu_request.policy import CHART_FILE, as_yaml, main, policy_rules

CHART = Path(__file__).parents[4] / "charts" / "bowline"


def test_the_charts_copy_is_what_the_rules_give() -> None:
    assert main(["--check", str(CHART)]) == 0


def test_a_copy_that_differs_is_told_with_the_remedy(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / CHART_FILE.parent).mkdir()
    assert main(["--check", str(tmp_path)]) == 1
    (tmp_path / CHART_FILE).write_text(as_yaml() + "#\n", encoding="utf-8")
    assert main(["--check", str(tmp_path)]) == 1
    assert capsys.readouterr().err.count("--write charts/bowline") == 2
    assert main(["--write", str(tmp_path)]) == 0
    assert main(["--check", str(tmp_path)]) == 0


def test_each_rule_is_documented() -> None:
    documented = (Path(__file__).parents[1] / "README.md").read_text("utf-8")
    assert [rule.name for rule in policy_rules() if f"`gpu_request/{rule.name}`" not in documented] == []
