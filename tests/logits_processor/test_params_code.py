"""Models of arguments that run their author's code are told from those that only name fields."""

from __future__ import annotations

from enum import Enum
from typing import Annotated, Any, Literal

import pytest
from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    GetCoreSchemaHandler,
    PrivateAttr,
    computed_field,
    create_model,
    field_validator,
    model_serializer,
    model_validator,
)
from pydantic_core import core_schema

from fastdeploy_lp.logits_processor import BUILTIN, TokenId, load_processors
from fastdeploy_lp.logits_processor.declared import runs_authors_code


class Color(Enum):
    RED = "red"


class Inner(BaseModel):
    values: list[int] = []


class Fields(BaseModel):
    """Fields of every plain kind."""

    number: Annotated[float, Field(ge=0, le=1)] = 0.5
    token: TokenId = 0
    tokens: dict[str, list[TokenId]] = Field(default_factory=dict)
    word: Literal["a", "b"] = "a"
    text: str | None = Field(None, pattern="^a+$", max_length=8)
    inner: Inner = Inner()
    color: Color = Color.RED


class FieldValidator(BaseModel):
    x: int = 0

    @field_validator("x")
    @classmethod
    def check(cls, value: int) -> int:
        return value


class ModelValidator(BaseModel):
    @model_validator(mode="before")
    @classmethod
    def check(cls, value: Any) -> Any:
        return value


class PostInit(BaseModel):
    def model_post_init(self, context: Any) -> None: ...


class Constructor(BaseModel):
    def __init__(self, **fields: Any) -> None:
        super().__init__(**fields)


class PythonsRegex(BaseModel):
    model_config = ConfigDict(regex_engine="python-re")
    text: str = Field("", pattern="^(a+)+$")


class Computed(BaseModel):
    @computed_field
    def x(self) -> int:
        return 1


class Serialized(BaseModel):
    @model_serializer
    def dumped(self) -> dict[str, Any]:
        return {}


class PrivateFactory(BaseModel):
    _x: int = PrivateAttr(default_factory=lambda: 1)


class Called(int):
    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: GetCoreSchemaHandler) -> core_schema.CoreSchema:
        return core_schema.no_info_after_validator_function(cls, handler(int))


class OwnValidate(BaseModel):
    @classmethod
    def model_validate(cls, *args: Any, **kwargs: Any) -> Any:
        return super().model_validate(*args, **kwargs)


WITH_CODE = [
    *(FieldValidator, ModelValidator, PostInit, Constructor, PythonsRegex, Computed, Serialized, PrivateFactory),
    OwnValidate,
    create_model("Annotation", x=(Annotated[int, AfterValidator(lambda value: value)], 0)),
    create_model("Factory", x=(int, Field(default_factory=lambda: 3))),
    create_model("CalledClass", x=(Called, 0)),
    create_model("Nested", x=(list[FieldValidator], [])),
]


@pytest.mark.parametrize("model", WITH_CODE, ids=lambda model: model.__name__)
def test_a_model_with_code_is_found(model: type[BaseModel]) -> None:
    assert runs_authors_code(model)


def test_fields_alone_are_none() -> None:
    assert not runs_authors_code(Fields)


def test_no_builtin_has_any() -> None:
    models = [each.params_model for each in load_processors(list(BUILTIN)) if each.params_model is not None]
    assert models
    assert not any(map(runs_authors_code, models))
