"""Bodies of uploads: JSON with base64, or a form with a file."""

from __future__ import annotations

import base64
import binascii
import email.policy
import json
from email.message import EmailMessage
from email.parser import BytesParser
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from fastdeploy_lp.engine.errors import InvalidRequestError
from fastdeploy_lp.entrypoints.openai.uploads.store import LABEL, MAX_UPLOAD_BYTES
from fastdeploy_lp.logits_processor.wasm.errors import WasmError
from fastdeploy_lp.logits_processor.wasm.module import SECTION, WasmModule, require_wasm, with_section
from fastdeploy_lp.request.limits import MAX_REWIND

FORM = "multipart/form-data"
MAX_DESCRIPTION = 2000


class UploadRequest(BaseModel):
    """Body of POST /v1/logits_processors.

    name: the beginning of the name that requests use. module: WebAssembly in base64. parameters: JSON Schema of a
    request's arguments. max_rewind: the most tokens that it takes back at once. These and the description are for a
    module that says nothing about itself.
    """

    model_config = ConfigDict(extra="forbid", strict=True)

    name: Annotated[str, Field(pattern=f"^{LABEL}$")]
    module: str
    parameters: dict[str, Any] | None = None
    description: Annotated[str, Field(max_length=MAX_DESCRIPTION)] | None = None
    max_rewind: Annotated[int, Field(ge=0, le=MAX_REWIND)] | None = None


def read_upload(content_type: str, body: bytes) -> tuple[str, bytes]:
    """Returns the name of an upload, and its module with its section about itself; takes milliseconds.

    Raises InvalidRequestError.
    """
    fields = _form(content_type, body) if content_type.lower().startswith(FORM) else body
    try:
        if isinstance(fields, bytes):
            request = UploadRequest.model_validate_json(fields)
        else:
            request = UploadRequest.model_validate(fields)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        raise InvalidRequestError(".".join(map(str, first["loc"])) or None, first["msg"]) from None
    try:
        content = base64.b64decode(request.module, validate=True)
    except binascii.Error as error:
        raise InvalidRequestError("module", f"no base64: {error}") from None
    if len(content) > MAX_UPLOAD_BYTES:
        raise InvalidRequestError("module", f"{len(content)} bytes; at most {MAX_UPLOAD_BYTES} are allowed")
    given = {name: getattr(request, name) for name in ("parameters", "description", "max_rewind")}
    about = {name: value for name, value in given.items() if value is not None}
    try:
        content = require_wasm(content)
        if about:
            if WasmModule(request.name, content).section is not None:
                raise InvalidRequestError(next(iter(about)), f"the module has its own section {SECTION}; leave it out")
            content = with_section(content, json.dumps(about).encode())
        _ = WasmModule(request.name, content).params_model
    except WasmError as error:
        place = "parameters" if "parameters" in str(error) and "parameters" in about else "module"
        raise InvalidRequestError(place, str(error)) from None
    return request.name, content


def _form(content_type: str, body: bytes) -> dict[str, Any]:
    """Returns the fields of a form as the JSON body has them."""
    head = b"Content-Type: " + content_type.encode("latin-1") + b"\r\n\r\n"
    message = BytesParser(EmailMessage, policy=email.policy.HTTP).parsebytes(head + body)
    if not message.is_multipart():
        raise InvalidRequestError(None, "the form has no parts; its boundary may be missing")
    fields: dict[str, Any] = {}
    for part in message.iter_parts():
        name = part.get_param("name", header="content-disposition")
        content = part.get_payload(decode=True)
        if not isinstance(name, str) or not isinstance(content, bytes):
            raise InvalidRequestError(None, "a part of the form has no name")
        if name in fields:
            raise InvalidRequestError(name, "the form has this field twice")
        fields[name] = _field(name, content)
    return fields


def _field(name: str, content: bytes) -> Any:
    try:
        if name == "module":
            return base64.b64encode(content).decode()
        return json.loads(content) if name in ("parameters", "max_rewind") else content.decode()
    except ValueError as error:
        raise InvalidRequestError(name, f"cannot be read: {error}") from None
