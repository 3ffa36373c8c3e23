"""What the DHT accepts under our keys: signed leases of sane size and lifetime, and nothing else.

Every peer uses the same rules, for what it stores and for what it reads. Three of them apply in turn: the subkey is the
signer's public key and the signature is right (`RSASignatureValidator`), the key is one of ours and the value has the form of
a lease (`SchemaValidator`), every field is within its bounds (`node.leases`).
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import lru_cache
from typing import Any

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.hazmat.primitives.serialization import load_ssh_public_key

from node.directory.library import (
    BytesWithPublicKey,
    CompositeValidator,
    DHTRecord,
    MSGPackSerializer,
    RSAPrivateKey,
    RSASignatureValidator,
    SchemaValidator,
    pydantic_v1,
)
from node.identity import peer_id_of
from node.leases import (
    MAX_ADDRESS_CHARS,
    MAX_INTEGER,
    MAX_NAME_CHARS,
    MAX_RECORD_BYTES,
    MAX_STAGES,
    MAX_TICKET_CHARS,
    all_keys,
    from_record,
)
from protocol.ids import PeerId

MAX_SIGNED_BYTES = MAX_RECORD_BYTES + 1024
"""A record and its signature, base64 of 256 to 512 bytes."""
REMEMBERED_VERDICTS = 8192
_OWNER = re.compile(rb"\[owner:(ssh-rsa [A-Za-z0-9+/=]{360,720})\]")
"""A key of 2048 to 4096 bits: longer ones would cost readers too much time."""


class _LeaseSchema(pydantic_v1.BaseModel):
    incarnation: pydantic_v1.conint(strict=True, ge=0, le=MAX_INTEGER)  # type: ignore[valid-type]
    name: pydantic_v1.constr(strict=True, max_length=MAX_NAME_CHARS)  # type: ignore[valid-type]
    address: pydantic_v1.constr(strict=True, max_length=MAX_ADDRESS_CHARS)  # type: ignore[valid-type]
    http: pydantic_v1.constr(strict=True, max_length=MAX_ADDRESS_CHARS)  # type: ignore[valid-type]
    stages: pydantic_v1.conlist(pydantic_v1.StrictInt, max_items=MAX_STAGES)  # type: ignore[valid-type]
    ballot_term: pydantic_v1.conint(strict=True, ge=0, le=MAX_INTEGER)  # type: ignore[valid-type]
    coordinator: pydantic_v1.StrictBool
    leaving: pydantic_v1.StrictBool
    ticket: pydantic_v1.constr(strict=True, max_length=MAX_TICKET_CHARS)  # type: ignore[valid-type]
    dht: pydantic_v1.constr(strict=True, max_length=MAX_ADDRESS_CHARS)  # type: ignore[valid-type]

    class Config:
        extra = "forbid"


class LeaseValidator:
    """hivemind's `RecordValidatorBase` for one run. Anything malformed is False and counted, never an exception."""

    priority = 0

    def __init__(self, run_digest: str, key: rsa.RSAPrivateKey, wall: Callable[[], float]) -> None:
        self.malformed = 0
        self._wall = wall
        signatures = RSASignatureValidator(_signer(key))
        fields: dict[str, Any] = {name: (dict[BytesWithPublicKey, _LeaseSchema], {}) for name in all_keys(run_digest)}
        schema = SchemaValidator(pydantic_v1.create_model("Leases", **fields), allow_extra_keys=False)
        self._rules = CompositeValidator([signatures, schema])
        self._obeys_rules = lru_cache(REMEMBERED_VERDICTS)(self._rules.validate)
        self.subkey: bytes = signatures.local_public_key

    def validate(self, record: Any) -> bool:
        """Whether a record may be stored or shown."""
        try:
            valid = self._is_lease(record)
        except Exception:  # noqa: BLE001 - hostile bytes in three parsers that are not ours
            valid = False
        self.malformed += not valid
        return valid

    def sign_value(self, record: Any) -> Any:
        """The value with our signature."""
        return self._rules.sign_value(record)

    def strip_value(self, record: Any) -> Any:
        """The value without its signature."""
        return self._rules.strip_value(record)

    def _is_lease(self, record: Any) -> bool:
        if len(record.value) > MAX_SIGNED_BYTES or len(record.subkey) > MAX_SIGNED_BYTES:
            return False
        owner = peer_of(MSGPackSerializer.loads(record.subkey))
        if not self._obeys_rules(record):
            return False
        plain = MSGPackSerializer.loads(self.strip_value(record))
        from_record(plain, owner, record.expiration_time, self._wall())
        return True


@lru_cache(REMEMBERED_VERDICTS)
def peer_of(subkey: bytes) -> PeerId:
    """The peer whose public key the subkey is. Raises `ValueError`."""
    match = _OWNER.fullmatch(subkey) if isinstance(subkey, bytes) else None
    if match is None:
        raise ValueError("the subkey is not a public key")
    try:
        key = load_ssh_public_key(match[1])
    except UnsupportedAlgorithm as error:
        raise ValueError(str(error)) from None
    if not isinstance(key, rsa.RSAPublicKey):
        raise ValueError("the subkey is not an RSA key")
    return peer_id_of(key)


def _signer(key: rsa.RSAPrivateKey) -> Any:
    """hivemind's own class makes a new key whenever it is constructed."""
    signer = RSAPrivateKey.__new__(RSAPrivateKey)
    signer._private_key = key
    return signer


__all__ = ["MAX_SIGNED_BYTES", "DHTRecord", "LeaseValidator", "peer_of"]
