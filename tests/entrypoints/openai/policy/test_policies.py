"""Errors of a policy file, each in one line; rules and their variants."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from support.masks import CHAIN
from support.server import REPOSITORY

from fastdeploy_lp.engine.errors import InvalidRequestError
from fastdeploy_lp.entrypoints.openai.policy.policies import Policies
from fastdeploy_lp.entrypoints.openai.policy.rule import Rule, RuleVariant
from fastdeploy_lp.entrypoints.openai.protocol.completion import CompletionRequest
from fastdeploy_lp.logits_processor import RequestArgsError, RequestArgsValidator, Selection, load_processors
from fastdeploy_lp.logits_processor.arguments.request import Imposed
from fastdeploy_lp.request.sampling_params import SamplingParams

DECLARED = load_processors(list(CHAIN), mandatory=["VllmMask"])
VALIDATOR = RequestArgsValidator(DECLARED, 512)
DIGEST = "sha256:" + 64 * "0"
DIGEST_OF_DOCUMENT = "2bb80d537b1da3e38bd30361aa855686bde0eacd7162fef6a25fe97bf527a25b"


def chosen(params: SamplingParams) -> Selection:
    try:
        return VALIDATOR.validate(params)
    except RequestArgsError as error:
        raise InvalidRequestError(error.path, error.reason) from None


def read(tmp_path: Path, content: Any, *, knows_keys: bool = True) -> Policies:
    path = tmp_path / "policy.yaml"
    path.write_text(content if isinstance(content, str) else yaml.safe_dump(content))
    return Policies(path, DECLARED, ("late",), chosen, knows_keys=knows_keys)


def rule(**fields: Any) -> dict[str, Any]:
    return {"rules": [{"name": "one", **fields}]}


@pytest.mark.parametrize(
    ("content", "named"),
    [
        ("rules: [", "while parsing"),
        ("- 1", "valid dictionary"),
        ({"rule": []}, "rules: Field required"),
        ({"rules": []}, "rules: List should have at least 1 item"),
        (rule(names="x"), "rules.0.names: Extra inputs"),
        (rule(name="a b"), "rules.0.name: String should match"),
        (rule(keys=["secret"]), "rules.0.keys.0: must be sha256: and the 64 hexadecimal digits"),
        ({"rules": [{"name": "a"}, {"name": "b"}]}, "two rules are for all other clients"),
        ({"rules": [{"name": "a", "keys": [DIGEST]}, {"name": "b", "keys": [DIGEST]}]}, f"two rules are for {DIGEST}"),
        ({"rules": [{"name": "a", "keys": [DIGEST]}, {"name": "a"}]}, "names must differ"),
        (rule(max_tokens=0), "rules.0.max_tokens: Input should be greater than or equal to 1"),
        (rule(force={"RowMusk": {}}), "one: no logits processor 'RowMusk' is declared"),
        (rule(force={"late": {"logit_bias": {"1": 1}}}), "one: force: late is in shadow"),
        (rule(force={"early": {}}), "one: force: early changes only requests that pass it arguments"),
        (rule(force={"early": {"logit_bias": {"999": 1}}}), "one: force: logits_processors.early.logit_bias.999"),
        (rule(default={"plugin_mask": {"more": 1}}), "one: default: logits_processors.plugin_mask.more"),
        (rule(forbid=["VllmMask"]), "one: forbid: VllmMask is mandatory"),
        (rule(force={"RowMask": {}}, forbid=["RowMask"], allow=["RowMask"]), "allow: RowMask is also in force"),
        (rule(default={"early": {}}, forbid=["early"]), "default: early is also in forbid"),
        (rule(experiment={"by": "weather", "variants": [{"name": "a", "share": 0.5}]}), "experiment.by"),
        (rule(experiment={"variants": [{"name": "a", "share": 0.7}, {"name": "b", "share": 0.7}]}), "more than 1"),
        (rule(experiment={"variants": [{"name": "control", "share": 0.5}]}), "from 'control'"),
    ],
    ids=str,
)
def test_what_is_wrong_is_named_in_one_line(tmp_path: Path, content: Any, named: str) -> None:
    with pytest.raises(ValueError, match=r"^policy: ") as caught:
        read(tmp_path, content)
    assert named in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"policy: .*nowhere\.yaml: .*No such file"):
        Policies(tmp_path / "nowhere.yaml", DECLARED, (), chosen, knows_keys=True)


def test_a_rule_for_keys_needs_keys(tmp_path: Path) -> None:
    with pytest.raises(
        ValueError, match=r"policy: .*policy\.yaml: one: keys: clients of this server have none.*--api-key"
    ):
        read(tmp_path, rule(keys=[DIGEST]), knows_keys=False)
    assert read(tmp_path, rule(max_tokens=3), knows_keys=False).current.others.imposed.max_tokens == 3


def test_allow_withholds_the_others_except_mandatory_ones(tmp_path: Path) -> None:
    imposed = read(tmp_path, rule(allow=["early"], default={"plugin_mask": {}})).current.others.imposed
    assert set(imposed.withheld) == {"Unbans", "RowMask", "LogitBiasLogitsProcessor", "late"} | {
        "SequenceBiasLogitsProcessor"
    }


def test_a_variant_replaces_the_fields_that_it_sets(tmp_path: Path) -> None:
    variant = {"name": "b", "share": 1.0, "max_tokens": 3}
    policy = read(tmp_path, rule(forbid=["early"], max_tokens=9, experiment={"variants": [variant]})).current
    (found,) = policy.others.variants
    assert found.imposed == Imposed(withheld=("early",), max_tokens=3)
    assert policy.others.imposed.max_tokens == 9


def test_shares_are_kept_and_a_user_stays_in_its_variant() -> None:
    by_user = Rule("r", by="user", variants=[RuleVariant("a", 0.2, Imposed()), RuleVariant("b", 0.3, Imposed())])
    asked = [CompletionRequest(prompt="Hi", user=str(number % 2000)) for number in range(4000)]
    names = [by_user.of(each, "key", f"request {number}").name for number, each in enumerate(asked)]
    assert names[:2000] == names[2000:]
    assert abs(names.count("a") / 4000 - 0.2) < 0.03
    assert abs(names.count("b") / 4000 - 0.3) < 0.03
    assert abs(names.count("control") / 4000 - 0.5) < 0.03


def test_the_documents_example_is_valid(tmp_path: Path) -> None:
    text = (REPOSITORY / "docs" / "policy.md").read_text()
    example = text.partition("```yaml\n")[2].partition("```")[0]
    names = re.findall(r"[A-Za-z]+LogitsProcessor", example)
    declared = load_processors(sorted(set(names)))
    validator = RequestArgsValidator(declared, 512, lambda phrase: list(phrase.encode()))
    path = tmp_path / "policy.yaml"
    path.write_text(example)
    policies = Policies(path, declared, (), validator.validate, knows_keys=True)
    (variant,) = policies.current.by_key[DIGEST_OF_DOCUMENT].variants
    assert set(variant.imposed.forced) == {"SequenceBiasLogitsProcessor"}
    assert policies.current.others.secret == {*names} - {"LogitBiasLogitsProcessor"}
