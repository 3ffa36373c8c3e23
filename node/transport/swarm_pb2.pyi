from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Role(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    none: _ClassVar[Role]
    active: _ClassVar[Role]
    passive: _ClassVar[Role]
    learner: _ClassVar[Role]
    parked: _ClassVar[Role]
none: Role
active: Role
passive: Role
learner: Role
parked: Role

class LightFrame(_message.Message):
    __slots__ = ("hello", "envelope")
    HELLO_FIELD_NUMBER: _ClassVar[int]
    ENVELOPE_FIELD_NUMBER: _ClassVar[int]
    hello: Hello
    envelope: Envelope
    def __init__(self, hello: _Optional[_Union[Hello, _Mapping]] = ..., envelope: _Optional[_Union[Envelope, _Mapping]] = ...) -> None: ...

class BulkFrame(_message.Message):
    __slots__ = ("hello", "payload_head", "chunk")
    HELLO_FIELD_NUMBER: _ClassVar[int]
    PAYLOAD_HEAD_FIELD_NUMBER: _ClassVar[int]
    CHUNK_FIELD_NUMBER: _ClassVar[int]
    hello: Hello
    payload_head: PayloadHead
    chunk: Chunk
    def __init__(self, hello: _Optional[_Union[Hello, _Mapping]] = ..., payload_head: _Optional[_Union[PayloadHead, _Mapping]] = ..., chunk: _Optional[_Union[Chunk, _Mapping]] = ...) -> None: ...

class Hello(_message.Message):
    __slots__ = ("protocol_version", "run_id", "peer", "incarnation", "address", "to")
    PROTOCOL_VERSION_FIELD_NUMBER: _ClassVar[int]
    RUN_ID_FIELD_NUMBER: _ClassVar[int]
    PEER_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    TO_FIELD_NUMBER: _ClassVar[int]
    protocol_version: int
    run_id: str
    peer: str
    incarnation: int
    address: str
    to: str
    def __init__(self, protocol_version: _Optional[int] = ..., run_id: _Optional[str] = ..., peer: _Optional[str] = ..., incarnation: _Optional[int] = ..., address: _Optional[str] = ..., to: _Optional[str] = ...) -> None: ...

class Answer(_message.Message):
    __slots__ = ("welcome", "closing", "receipt")
    WELCOME_FIELD_NUMBER: _ClassVar[int]
    CLOSING_FIELD_NUMBER: _ClassVar[int]
    RECEIPT_FIELD_NUMBER: _ClassVar[int]
    welcome: Welcome
    closing: Closing
    receipt: Receipt
    def __init__(self, welcome: _Optional[_Union[Welcome, _Mapping]] = ..., closing: _Optional[_Union[Closing, _Mapping]] = ..., receipt: _Optional[_Union[Receipt, _Mapping]] = ...) -> None: ...

class Welcome(_message.Message):
    __slots__ = ("peer", "incarnation")
    PEER_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    peer: str
    incarnation: int
    def __init__(self, peer: _Optional[str] = ..., incarnation: _Optional[int] = ...) -> None: ...

class Receipt(_message.Message):
    __slots__ = ("num_payloads",)
    NUM_PAYLOADS_FIELD_NUMBER: _ClassVar[int]
    num_payloads: int
    def __init__(self, num_payloads: _Optional[int] = ...) -> None: ...

class Closing(_message.Message):
    __slots__ = ("code", "sentence")
    CODE_FIELD_NUMBER: _ClassVar[int]
    SENTENCE_FIELD_NUMBER: _ClassVar[int]
    code: str
    sentence: str
    def __init__(self, code: _Optional[str] = ..., sentence: _Optional[str] = ...) -> None: ...

class PayloadHead(_message.Message):
    __slots__ = ("header", "codec", "shape", "num_bytes")
    HEADER_FIELD_NUMBER: _ClassVar[int]
    CODEC_FIELD_NUMBER: _ClassVar[int]
    SHAPE_FIELD_NUMBER: _ClassVar[int]
    NUM_BYTES_FIELD_NUMBER: _ClassVar[int]
    header: Header
    codec: str
    shape: _containers.RepeatedScalarFieldContainer[int]
    num_bytes: int
    def __init__(self, header: _Optional[_Union[Header, _Mapping]] = ..., codec: _Optional[str] = ..., shape: _Optional[_Iterable[int]] = ..., num_bytes: _Optional[int] = ...) -> None: ...

class Chunk(_message.Message):
    __slots__ = ("position", "data")
    POSITION_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    position: int
    data: bytes
    def __init__(self, position: _Optional[int] = ..., data: _Optional[bytes] = ...) -> None: ...

class DescribeRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class Description(_message.Message):
    __slots__ = ("run_id", "peer", "incarnation", "protocol_version", "stages")
    RUN_ID_FIELD_NUMBER: _ClassVar[int]
    PEER_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    PROTOCOL_VERSION_FIELD_NUMBER: _ClassVar[int]
    STAGES_FIELD_NUMBER: _ClassVar[int]
    run_id: str
    peer: str
    incarnation: int
    protocol_version: int
    stages: _containers.RepeatedCompositeFieldContainer[HeldStage]
    def __init__(self, run_id: _Optional[str] = ..., peer: _Optional[str] = ..., incarnation: _Optional[int] = ..., protocol_version: _Optional[int] = ..., stages: _Optional[_Iterable[_Union[HeldStage, _Mapping]]] = ...) -> None: ...

class HeldStage(_message.Message):
    __slots__ = ("stage", "state_id", "step", "num_elements", "digest")
    STAGE_FIELD_NUMBER: _ClassVar[int]
    STATE_ID_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    NUM_ELEMENTS_FIELD_NUMBER: _ClassVar[int]
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    stage: int
    state_id: str
    step: int
    num_elements: int
    digest: str
    def __init__(self, stage: _Optional[int] = ..., state_id: _Optional[str] = ..., step: _Optional[int] = ..., num_elements: _Optional[int] = ..., digest: _Optional[str] = ...) -> None: ...

class BlobRequest(_message.Message):
    __slots__ = ("digest", "offset", "size")
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    SIZE_FIELD_NUMBER: _ClassVar[int]
    digest: str
    offset: int
    size: int
    def __init__(self, digest: _Optional[str] = ..., offset: _Optional[int] = ..., size: _Optional[int] = ...) -> None: ...

class BlobChunk(_message.Message):
    __slots__ = ("offset", "data")
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    offset: int
    data: bytes
    def __init__(self, offset: _Optional[int] = ..., data: _Optional[bytes] = ...) -> None: ...

class FetchRequest(_message.Message):
    __slots__ = ("stage", "state_id", "section", "first", "count")
    STAGE_FIELD_NUMBER: _ClassVar[int]
    STATE_ID_FIELD_NUMBER: _ClassVar[int]
    SECTION_FIELD_NUMBER: _ClassVar[int]
    FIRST_FIELD_NUMBER: _ClassVar[int]
    COUNT_FIELD_NUMBER: _ClassVar[int]
    stage: int
    state_id: str
    section: str
    first: int
    count: int
    def __init__(self, stage: _Optional[int] = ..., state_id: _Optional[str] = ..., section: _Optional[str] = ..., first: _Optional[int] = ..., count: _Optional[int] = ...) -> None: ...

class RangeChunk(_message.Message):
    __slots__ = ("first", "data", "checksum", "facts")
    FIRST_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    CHECKSUM_FIELD_NUMBER: _ClassVar[int]
    FACTS_FIELD_NUMBER: _ClassVar[int]
    first: int
    data: bytes
    checksum: bytes
    facts: StateFacts
    def __init__(self, first: _Optional[int] = ..., data: _Optional[bytes] = ..., checksum: _Optional[bytes] = ..., facts: _Optional[_Union[StateFacts, _Mapping]] = ...) -> None: ...

class StateFacts(_message.Message):
    __slots__ = ("state_id", "step", "optimizer_age", "lr_factor", "generation", "digest")
    STATE_ID_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    OPTIMIZER_AGE_FIELD_NUMBER: _ClassVar[int]
    LR_FACTOR_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    state_id: str
    step: int
    optimizer_age: int
    lr_factor: float
    generation: int
    digest: str
    def __init__(self, state_id: _Optional[str] = ..., step: _Optional[int] = ..., optimizer_age: _Optional[int] = ..., lr_factor: _Optional[float] = ..., generation: _Optional[int] = ..., digest: _Optional[str] = ...) -> None: ...

class DialBackRequest(_message.Message):
    __slots__ = ("address",)
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    address: str
    def __init__(self, address: _Optional[str] = ...) -> None: ...

class DialBackAnswer(_message.Message):
    __slots__ = ("dialled", "reached", "sentence", "seen_host")
    DIALLED_FIELD_NUMBER: _ClassVar[int]
    REACHED_FIELD_NUMBER: _ClassVar[int]
    SENTENCE_FIELD_NUMBER: _ClassVar[int]
    SEEN_HOST_FIELD_NUMBER: _ClassVar[int]
    dialled: bool
    reached: bool
    sentence: str
    seen_host: str
    def __init__(self, dialled: _Optional[bool] = ..., reached: _Optional[bool] = ..., sentence: _Optional[str] = ..., seen_host: _Optional[str] = ...) -> None: ...

class ObserveRequest(_message.Message):
    __slots__ = ("run_digest", "metrics", "after", "claims_after", "roots_after")
    RUN_DIGEST_FIELD_NUMBER: _ClassVar[int]
    METRICS_FIELD_NUMBER: _ClassVar[int]
    AFTER_FIELD_NUMBER: _ClassVar[int]
    CLAIMS_AFTER_FIELD_NUMBER: _ClassVar[int]
    ROOTS_AFTER_FIELD_NUMBER: _ClassVar[int]
    run_digest: str
    metrics: bool
    after: int
    claims_after: int
    roots_after: int
    def __init__(self, run_digest: _Optional[str] = ..., metrics: _Optional[bool] = ..., after: _Optional[int] = ..., claims_after: _Optional[int] = ..., roots_after: _Optional[int] = ...) -> None: ...

class Observation(_message.Message):
    __slots__ = ("status", "metrics", "chronicle", "proofs")
    STATUS_FIELD_NUMBER: _ClassVar[int]
    METRICS_FIELD_NUMBER: _ClassVar[int]
    CHRONICLE_FIELD_NUMBER: _ClassVar[int]
    PROOFS_FIELD_NUMBER: _ClassVar[int]
    status: bytes
    metrics: bytes
    chronicle: bytes
    proofs: bytes
    def __init__(self, status: _Optional[bytes] = ..., metrics: _Optional[bytes] = ..., chronicle: _Optional[bytes] = ..., proofs: _Optional[bytes] = ...) -> None: ...

class Envelope(_message.Message):
    __slots__ = ("heartbeat", "wish", "goodbye", "suspect", "records_wanted", "reduce_ready", "reduced_report", "stalled", "applied_report", "evaluated", "held", "propose", "decide", "open_step", "start_reduce", "void_step", "probe", "open_evaluation", "standing", "order", "promise", "prepare", "leave", "learning", "summary", "meeting", "revoke", "revoked", "unrestored", "shadowed")
    HEARTBEAT_FIELD_NUMBER: _ClassVar[int]
    WISH_FIELD_NUMBER: _ClassVar[int]
    GOODBYE_FIELD_NUMBER: _ClassVar[int]
    SUSPECT_FIELD_NUMBER: _ClassVar[int]
    RECORDS_WANTED_FIELD_NUMBER: _ClassVar[int]
    REDUCE_READY_FIELD_NUMBER: _ClassVar[int]
    REDUCED_REPORT_FIELD_NUMBER: _ClassVar[int]
    STALLED_FIELD_NUMBER: _ClassVar[int]
    APPLIED_REPORT_FIELD_NUMBER: _ClassVar[int]
    EVALUATED_FIELD_NUMBER: _ClassVar[int]
    HELD_FIELD_NUMBER: _ClassVar[int]
    PROPOSE_FIELD_NUMBER: _ClassVar[int]
    DECIDE_FIELD_NUMBER: _ClassVar[int]
    OPEN_STEP_FIELD_NUMBER: _ClassVar[int]
    START_REDUCE_FIELD_NUMBER: _ClassVar[int]
    VOID_STEP_FIELD_NUMBER: _ClassVar[int]
    PROBE_FIELD_NUMBER: _ClassVar[int]
    OPEN_EVALUATION_FIELD_NUMBER: _ClassVar[int]
    STANDING_FIELD_NUMBER: _ClassVar[int]
    ORDER_FIELD_NUMBER: _ClassVar[int]
    PROMISE_FIELD_NUMBER: _ClassVar[int]
    PREPARE_FIELD_NUMBER: _ClassVar[int]
    LEAVE_FIELD_NUMBER: _ClassVar[int]
    LEARNING_FIELD_NUMBER: _ClassVar[int]
    SUMMARY_FIELD_NUMBER: _ClassVar[int]
    YIELD_FIELD_NUMBER: _ClassVar[int]
    MEETING_FIELD_NUMBER: _ClassVar[int]
    REVOKE_FIELD_NUMBER: _ClassVar[int]
    REVOKED_FIELD_NUMBER: _ClassVar[int]
    UNRESTORED_FIELD_NUMBER: _ClassVar[int]
    SHADOWED_FIELD_NUMBER: _ClassVar[int]
    heartbeat: Heartbeat
    wish: Wish
    goodbye: Goodbye
    suspect: Suspect
    records_wanted: RecordsWanted
    reduce_ready: ReduceReady
    reduced_report: ReducedReport
    stalled: Stalled
    applied_report: AppliedReport
    evaluated: Evaluated
    held: Held
    propose: Propose
    decide: Decide
    open_step: OpenStep
    start_reduce: StartReduce
    void_step: VoidStep
    probe: Probe
    open_evaluation: OpenEvaluation
    standing: Standing
    order: Order
    promise: Promise
    prepare: Prepare
    leave: Leave
    learning: Learning
    summary: Summary
    meeting: Meeting
    revoke: Revoke
    revoked: Revoked
    unrestored: Unrestored
    shadowed: Shadowed
    def __init__(self, heartbeat: _Optional[_Union[Heartbeat, _Mapping]] = ..., wish: _Optional[_Union[Wish, _Mapping]] = ..., goodbye: _Optional[_Union[Goodbye, _Mapping]] = ..., suspect: _Optional[_Union[Suspect, _Mapping]] = ..., records_wanted: _Optional[_Union[RecordsWanted, _Mapping]] = ..., reduce_ready: _Optional[_Union[ReduceReady, _Mapping]] = ..., reduced_report: _Optional[_Union[ReducedReport, _Mapping]] = ..., stalled: _Optional[_Union[Stalled, _Mapping]] = ..., applied_report: _Optional[_Union[AppliedReport, _Mapping]] = ..., evaluated: _Optional[_Union[Evaluated, _Mapping]] = ..., held: _Optional[_Union[Held, _Mapping]] = ..., propose: _Optional[_Union[Propose, _Mapping]] = ..., decide: _Optional[_Union[Decide, _Mapping]] = ..., open_step: _Optional[_Union[OpenStep, _Mapping]] = ..., start_reduce: _Optional[_Union[StartReduce, _Mapping]] = ..., void_step: _Optional[_Union[VoidStep, _Mapping]] = ..., probe: _Optional[_Union[Probe, _Mapping]] = ..., open_evaluation: _Optional[_Union[OpenEvaluation, _Mapping]] = ..., standing: _Optional[_Union[Standing, _Mapping]] = ..., order: _Optional[_Union[Order, _Mapping]] = ..., promise: _Optional[_Union[Promise, _Mapping]] = ..., prepare: _Optional[_Union[Prepare, _Mapping]] = ..., leave: _Optional[_Union[Leave, _Mapping]] = ..., learning: _Optional[_Union[Learning, _Mapping]] = ..., summary: _Optional[_Union[Summary, _Mapping]] = ..., meeting: _Optional[_Union[Meeting, _Mapping]] = ..., revoke: _Optional[_Union[Revoke, _Mapping]] = ..., revoked: _Optional[_Union[Revoked, _Mapping]] = ..., unrestored: _Optional[_Union[Unrestored, _Mapping]] = ..., shadowed: _Optional[_Union[Shadowed, _Mapping]] = ..., **kwargs) -> None: ...

class Header(_message.Message):
    __slots__ = ("pipe_header", "reduce_header")
    PIPE_HEADER_FIELD_NUMBER: _ClassVar[int]
    REDUCE_HEADER_FIELD_NUMBER: _ClassVar[int]
    pipe_header: PipeHeader
    reduce_header: ReduceHeader
    def __init__(self, pipe_header: _Optional[_Union[PipeHeader, _Mapping]] = ..., reduce_header: _Optional[_Union[ReduceHeader, _Mapping]] = ...) -> None: ...

class Record(_message.Message):
    __slots__ = ("commit", "roster", "rebuild", "rollback")
    COMMIT_FIELD_NUMBER: _ClassVar[int]
    ROSTER_FIELD_NUMBER: _ClassVar[int]
    REBUILD_FIELD_NUMBER: _ClassVar[int]
    ROLLBACK_FIELD_NUMBER: _ClassVar[int]
    commit: Commit
    roster: Roster
    rebuild: Rebuild
    rollback: Rollback
    def __init__(self, commit: _Optional[_Union[Commit, _Mapping]] = ..., roster: _Optional[_Union[Roster, _Mapping]] = ..., rebuild: _Optional[_Union[Rebuild, _Mapping]] = ..., rollback: _Optional[_Union[Rollback, _Mapping]] = ...) -> None: ...

class Member(_message.Message):
    __slots__ = ("peer", "incarnation")
    PEER_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    peer: bytes
    incarnation: int
    def __init__(self, peer: _Optional[bytes] = ..., incarnation: _Optional[int] = ...) -> None: ...

class MemberRows(_message.Message):
    __slots__ = ("peer", "incarnation")
    PEER_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    peer: bytes
    incarnation: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, peer: _Optional[bytes] = ..., incarnation: _Optional[_Iterable[int]] = ...) -> None: ...

class Ballot(_message.Message):
    __slots__ = ("term", "peer")
    TERM_FIELD_NUMBER: _ClassVar[int]
    PEER_FIELD_NUMBER: _ClassVar[int]
    term: int
    peer: bytes
    def __init__(self, term: _Optional[int] = ..., peer: _Optional[bytes] = ...) -> None: ...

class NO_BALLOT(_message.Message):
    __slots__ = ("term", "peer")
    TERM_FIELD_NUMBER: _ClassVar[int]
    PEER_FIELD_NUMBER: _ClassVar[int]
    term: int
    peer: bytes
    def __init__(self, term: _Optional[int] = ..., peer: _Optional[bytes] = ...) -> None: ...

class StageResult(_message.Message):
    __slots__ = ("stage", "digest", "squared_norm")
    STAGE_FIELD_NUMBER: _ClassVar[int]
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    SQUARED_NORM_FIELD_NUMBER: _ClassVar[int]
    stage: int
    digest: bytes
    squared_norm: float
    def __init__(self, stage: _Optional[int] = ..., digest: _Optional[bytes] = ..., squared_norm: _Optional[float] = ...) -> None: ...

class StageResultRows(_message.Message):
    __slots__ = ("stage", "digest", "squared_norm")
    STAGE_FIELD_NUMBER: _ClassVar[int]
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    SQUARED_NORM_FIELD_NUMBER: _ClassVar[int]
    stage: _containers.RepeatedScalarFieldContainer[int]
    digest: bytes
    squared_norm: _containers.RepeatedScalarFieldContainer[float]
    def __init__(self, stage: _Optional[_Iterable[int]] = ..., digest: _Optional[bytes] = ..., squared_norm: _Optional[_Iterable[float]] = ...) -> None: ...

class Share(_message.Message):
    __slots__ = ("stage", "member", "microbatches")
    STAGE_FIELD_NUMBER: _ClassVar[int]
    MEMBER_FIELD_NUMBER: _ClassVar[int]
    MICROBATCHES_FIELD_NUMBER: _ClassVar[int]
    stage: int
    member: Member
    microbatches: bytes
    def __init__(self, stage: _Optional[int] = ..., member: _Optional[_Union[Member, _Mapping]] = ..., microbatches: _Optional[bytes] = ...) -> None: ...

class ShareRows(_message.Message):
    __slots__ = ("stage", "member", "microbatches")
    STAGE_FIELD_NUMBER: _ClassVar[int]
    MEMBER_FIELD_NUMBER: _ClassVar[int]
    MICROBATCHES_FIELD_NUMBER: _ClassVar[int]
    stage: _containers.RepeatedScalarFieldContainer[int]
    member: MemberRows
    microbatches: bytes
    def __init__(self, stage: _Optional[_Iterable[int]] = ..., member: _Optional[_Union[MemberRows, _Mapping]] = ..., microbatches: _Optional[bytes] = ...) -> None: ...

class Commit(_message.Message):
    __slots__ = ("parent", "step", "attempt", "results", "loss_sum", "tokens", "contributors")
    PARENT_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    RESULTS_FIELD_NUMBER: _ClassVar[int]
    LOSS_SUM_FIELD_NUMBER: _ClassVar[int]
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    CONTRIBUTORS_FIELD_NUMBER: _ClassVar[int]
    parent: bytes
    step: int
    attempt: int
    results: StageResultRows
    loss_sum: float
    tokens: int
    contributors: bytes
    def __init__(self, parent: _Optional[bytes] = ..., step: _Optional[int] = ..., attempt: _Optional[int] = ..., results: _Optional[_Union[StageResultRows, _Mapping]] = ..., loss_sum: _Optional[float] = ..., tokens: _Optional[int] = ..., contributors: _Optional[bytes] = ...) -> None: ...

class Seating(_message.Message):
    __slots__ = ("stage", "member", "role", "generation", "pinned")
    STAGE_FIELD_NUMBER: _ClassVar[int]
    MEMBER_FIELD_NUMBER: _ClassVar[int]
    ROLE_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    PINNED_FIELD_NUMBER: _ClassVar[int]
    stage: int
    member: Member
    role: Role
    generation: int
    pinned: bool
    def __init__(self, stage: _Optional[int] = ..., member: _Optional[_Union[Member, _Mapping]] = ..., role: _Optional[_Union[Role, str]] = ..., generation: _Optional[int] = ..., pinned: _Optional[bool] = ...) -> None: ...

class SeatingRows(_message.Message):
    __slots__ = ("stage", "member", "role", "generation", "pinned")
    STAGE_FIELD_NUMBER: _ClassVar[int]
    MEMBER_FIELD_NUMBER: _ClassVar[int]
    ROLE_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    PINNED_FIELD_NUMBER: _ClassVar[int]
    stage: _containers.RepeatedScalarFieldContainer[int]
    member: MemberRows
    role: _containers.RepeatedScalarFieldContainer[Role]
    generation: _containers.RepeatedScalarFieldContainer[int]
    pinned: _containers.RepeatedScalarFieldContainer[bool]
    def __init__(self, stage: _Optional[_Iterable[int]] = ..., member: _Optional[_Union[MemberRows, _Mapping]] = ..., role: _Optional[_Iterable[_Union[Role, str]]] = ..., generation: _Optional[_Iterable[int]] = ..., pinned: _Optional[_Iterable[bool]] = ...) -> None: ...

class Roster(_message.Message):
    __slots__ = ("parent", "step", "joins", "leaves", "voters", "forked")
    PARENT_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    JOINS_FIELD_NUMBER: _ClassVar[int]
    LEAVES_FIELD_NUMBER: _ClassVar[int]
    VOTERS_FIELD_NUMBER: _ClassVar[int]
    FORKED_FIELD_NUMBER: _ClassVar[int]
    parent: bytes
    step: int
    joins: SeatingRows
    leaves: SeatingRows
    voters: MemberRows
    forked: Ballot
    def __init__(self, parent: _Optional[bytes] = ..., step: _Optional[int] = ..., joins: _Optional[_Union[SeatingRows, _Mapping]] = ..., leaves: _Optional[_Union[SeatingRows, _Mapping]] = ..., voters: _Optional[_Union[MemberRows, _Mapping]] = ..., forked: _Optional[_Union[Ballot, _Mapping]] = ...) -> None: ...

class Source(_message.Message):
    __slots__ = ("stage", "state_id", "coefficient")
    STAGE_FIELD_NUMBER: _ClassVar[int]
    STATE_ID_FIELD_NUMBER: _ClassVar[int]
    COEFFICIENT_FIELD_NUMBER: _ClassVar[int]
    stage: int
    state_id: bytes
    coefficient: float
    def __init__(self, stage: _Optional[int] = ..., state_id: _Optional[bytes] = ..., coefficient: _Optional[float] = ...) -> None: ...

class Shadow(_message.Message):
    __slots__ = ("keeper", "digest", "oldest", "newest", "optimizer_age", "lr_factor")
    KEEPER_FIELD_NUMBER: _ClassVar[int]
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    OLDEST_FIELD_NUMBER: _ClassVar[int]
    NEWEST_FIELD_NUMBER: _ClassVar[int]
    OPTIMIZER_AGE_FIELD_NUMBER: _ClassVar[int]
    LR_FACTOR_FIELD_NUMBER: _ClassVar[int]
    keeper: Member
    digest: bytes
    oldest: int
    newest: int
    optimizer_age: int
    lr_factor: float
    def __init__(self, keeper: _Optional[_Union[Member, _Mapping]] = ..., digest: _Optional[bytes] = ..., oldest: _Optional[int] = ..., newest: _Optional[int] = ..., optimizer_age: _Optional[int] = ..., lr_factor: _Optional[float] = ...) -> None: ...

class Rebuild(_message.Message):
    __slots__ = ("parent", "step", "stage", "generation", "sources", "joins", "voters", "shadow")
    PARENT_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    STAGE_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    SOURCES_FIELD_NUMBER: _ClassVar[int]
    JOINS_FIELD_NUMBER: _ClassVar[int]
    VOTERS_FIELD_NUMBER: _ClassVar[int]
    SHADOW_FIELD_NUMBER: _ClassVar[int]
    parent: bytes
    step: int
    stage: int
    generation: int
    sources: _containers.RepeatedCompositeFieldContainer[Source]
    joins: SeatingRows
    voters: MemberRows
    shadow: Shadow
    def __init__(self, parent: _Optional[bytes] = ..., step: _Optional[int] = ..., stage: _Optional[int] = ..., generation: _Optional[int] = ..., sources: _Optional[_Iterable[_Union[Source, _Mapping]]] = ..., joins: _Optional[_Union[SeatingRows, _Mapping]] = ..., voters: _Optional[_Union[MemberRows, _Mapping]] = ..., shadow: _Optional[_Union[Shadow, _Mapping]] = ...) -> None: ...

class Point(_message.Message):
    __slots__ = ("step", "record", "states")
    STEP_FIELD_NUMBER: _ClassVar[int]
    RECORD_FIELD_NUMBER: _ClassVar[int]
    STATES_FIELD_NUMBER: _ClassVar[int]
    step: int
    record: bytes
    states: bytes
    def __init__(self, step: _Optional[int] = ..., record: _Optional[bytes] = ..., states: _Optional[bytes] = ...) -> None: ...

class Rollback(_message.Message):
    __slots__ = ("parent", "step", "epoch", "to_step", "states", "joins", "voters", "ballot")
    PARENT_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    TO_STEP_FIELD_NUMBER: _ClassVar[int]
    STATES_FIELD_NUMBER: _ClassVar[int]
    JOINS_FIELD_NUMBER: _ClassVar[int]
    VOTERS_FIELD_NUMBER: _ClassVar[int]
    BALLOT_FIELD_NUMBER: _ClassVar[int]
    parent: bytes
    step: int
    epoch: int
    to_step: int
    states: bytes
    joins: SeatingRows
    voters: MemberRows
    ballot: Ballot
    def __init__(self, parent: _Optional[bytes] = ..., step: _Optional[int] = ..., epoch: _Optional[int] = ..., to_step: _Optional[int] = ..., states: _Optional[bytes] = ..., joins: _Optional[_Union[SeatingRows, _Mapping]] = ..., voters: _Optional[_Union[MemberRows, _Mapping]] = ..., ballot: _Optional[_Union[Ballot, _Mapping]] = ...) -> None: ...

class Unrestored(_message.Message):
    __slots__ = ("ballot", "stage", "state_id", "reason")
    BALLOT_FIELD_NUMBER: _ClassVar[int]
    STAGE_FIELD_NUMBER: _ClassVar[int]
    STATE_ID_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    ballot: Ballot
    stage: int
    state_id: bytes
    reason: str
    def __init__(self, ballot: _Optional[_Union[Ballot, _Mapping]] = ..., stage: _Optional[int] = ..., state_id: _Optional[bytes] = ..., reason: _Optional[str] = ...) -> None: ...

class Shadowed(_message.Message):
    __slots__ = ("ballot", "stage", "step", "shadow")
    BALLOT_FIELD_NUMBER: _ClassVar[int]
    STAGE_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    SHADOW_FIELD_NUMBER: _ClassVar[int]
    ballot: Ballot
    stage: int
    step: int
    shadow: Shadow
    def __init__(self, ballot: _Optional[_Union[Ballot, _Mapping]] = ..., stage: _Optional[int] = ..., step: _Optional[int] = ..., shadow: _Optional[_Union[Shadow, _Mapping]] = ...) -> None: ...

class Contact(_message.Message):
    __slots__ = ("peer", "address")
    PEER_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    peer: bytes
    address: bytes
    def __init__(self, peer: _Optional[bytes] = ..., address: _Optional[bytes] = ...) -> None: ...

class ContactRows(_message.Message):
    __slots__ = ("peer", "address")
    PEER_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    peer: bytes
    address: bytes
    def __init__(self, peer: _Optional[bytes] = ..., address: _Optional[bytes] = ...) -> None: ...

class Hop(_message.Message):
    __slots__ = ("stage", "peer")
    STAGE_FIELD_NUMBER: _ClassVar[int]
    PEER_FIELD_NUMBER: _ClassVar[int]
    stage: int
    peer: bytes
    def __init__(self, stage: _Optional[int] = ..., peer: _Optional[bytes] = ...) -> None: ...

class HopRows(_message.Message):
    __slots__ = ("stage", "peer")
    STAGE_FIELD_NUMBER: _ClassVar[int]
    PEER_FIELD_NUMBER: _ClassVar[int]
    stage: _containers.RepeatedScalarFieldContainer[int]
    peer: bytes
    def __init__(self, stage: _Optional[_Iterable[int]] = ..., peer: _Optional[bytes] = ...) -> None: ...

class Route(_message.Message):
    __slots__ = ("microbatch", "hops", "amendment")
    MICROBATCH_FIELD_NUMBER: _ClassVar[int]
    HOPS_FIELD_NUMBER: _ClassVar[int]
    AMENDMENT_FIELD_NUMBER: _ClassVar[int]
    microbatch: int
    hops: HopRows
    amendment: int
    def __init__(self, microbatch: _Optional[int] = ..., hops: _Optional[_Union[HopRows, _Mapping]] = ..., amendment: _Optional[int] = ...) -> None: ...

class Heartbeat(_message.Message):
    __slots__ = ("incarnation", "ballot", "head", "step", "attempt", "amendment", "aside", "standing", "lacks")
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    BALLOT_FIELD_NUMBER: _ClassVar[int]
    HEAD_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    AMENDMENT_FIELD_NUMBER: _ClassVar[int]
    ASIDE_FIELD_NUMBER: _ClassVar[int]
    STANDING_FIELD_NUMBER: _ClassVar[int]
    LACKS_FIELD_NUMBER: _ClassVar[int]
    incarnation: int
    ballot: Ballot
    head: bytes
    step: int
    attempt: int
    amendment: int
    aside: bool
    standing: int
    lacks: bool
    def __init__(self, incarnation: _Optional[int] = ..., ballot: _Optional[_Union[Ballot, _Mapping]] = ..., head: _Optional[bytes] = ..., step: _Optional[int] = ..., attempt: _Optional[int] = ..., amendment: _Optional[int] = ..., aside: _Optional[bool] = ..., standing: _Optional[int] = ..., lacks: _Optional[bool] = ...) -> None: ...

class Wish(_message.Message):
    __slots__ = ("member", "stage", "name", "address", "memory_bytes", "kept")
    MEMBER_FIELD_NUMBER: _ClassVar[int]
    STAGE_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    MEMORY_BYTES_FIELD_NUMBER: _ClassVar[int]
    KEPT_FIELD_NUMBER: _ClassVar[int]
    member: Member
    stage: int
    name: str
    address: bytes
    memory_bytes: int
    kept: _containers.RepeatedCompositeFieldContainer[Kept]
    def __init__(self, member: _Optional[_Union[Member, _Mapping]] = ..., stage: _Optional[int] = ..., name: _Optional[str] = ..., address: _Optional[bytes] = ..., memory_bytes: _Optional[int] = ..., kept: _Optional[_Iterable[_Union[Kept, _Mapping]]] = ...) -> None: ...

class Kept(_message.Message):
    __slots__ = ("stage", "state_id", "digest")
    STAGE_FIELD_NUMBER: _ClassVar[int]
    STATE_ID_FIELD_NUMBER: _ClassVar[int]
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    stage: int
    state_id: bytes
    digest: bytes
    def __init__(self, stage: _Optional[int] = ..., state_id: _Optional[bytes] = ..., digest: _Optional[bytes] = ...) -> None: ...

class Goodbye(_message.Message):
    __slots__ = ("member", "reason")
    MEMBER_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    member: Member
    reason: str
    def __init__(self, member: _Optional[_Union[Member, _Mapping]] = ..., reason: _Optional[str] = ...) -> None: ...

class Leave(_message.Message):
    __slots__ = ("member", "reason")
    MEMBER_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    member: Member
    reason: str
    def __init__(self, member: _Optional[_Union[Member, _Mapping]] = ..., reason: _Optional[str] = ...) -> None: ...

class Suspect(_message.Message):
    __slots__ = ("member", "reason")
    MEMBER_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    member: Member
    reason: str
    def __init__(self, member: _Optional[_Union[Member, _Mapping]] = ..., reason: _Optional[str] = ...) -> None: ...

class RecordsWanted(_message.Message):
    __slots__ = ("head",)
    HEAD_FIELD_NUMBER: _ClassVar[int]
    head: bytes
    def __init__(self, head: _Optional[bytes] = ...) -> None: ...

class Learning(_message.Message):
    __slots__ = ("ballot", "stage", "state_id", "digest", "seconds_left", "head")
    BALLOT_FIELD_NUMBER: _ClassVar[int]
    STAGE_FIELD_NUMBER: _ClassVar[int]
    STATE_ID_FIELD_NUMBER: _ClassVar[int]
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    SECONDS_LEFT_FIELD_NUMBER: _ClassVar[int]
    HEAD_FIELD_NUMBER: _ClassVar[int]
    ballot: Ballot
    stage: int
    state_id: bytes
    digest: bytes
    seconds_left: float
    head: bytes
    def __init__(self, ballot: _Optional[_Union[Ballot, _Mapping]] = ..., stage: _Optional[int] = ..., state_id: _Optional[bytes] = ..., digest: _Optional[bytes] = ..., seconds_left: _Optional[float] = ..., head: _Optional[bytes] = ...) -> None: ...

class ReduceReady(_message.Message):
    __slots__ = ("ballot", "step", "attempt", "stage", "microbatches", "loss_sum", "tokens", "seconds_per_microbatch")
    BALLOT_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    STAGE_FIELD_NUMBER: _ClassVar[int]
    MICROBATCHES_FIELD_NUMBER: _ClassVar[int]
    LOSS_SUM_FIELD_NUMBER: _ClassVar[int]
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    SECONDS_PER_MICROBATCH_FIELD_NUMBER: _ClassVar[int]
    ballot: Ballot
    step: int
    attempt: int
    stage: int
    microbatches: bytes
    loss_sum: float
    tokens: int
    seconds_per_microbatch: float
    def __init__(self, ballot: _Optional[_Union[Ballot, _Mapping]] = ..., step: _Optional[int] = ..., attempt: _Optional[int] = ..., stage: _Optional[int] = ..., microbatches: _Optional[bytes] = ..., loss_sum: _Optional[float] = ..., tokens: _Optional[int] = ..., seconds_per_microbatch: _Optional[float] = ...) -> None: ...

class ReducedReport(_message.Message):
    __slots__ = ("ballot", "step", "attempt", "stage", "digest", "squared_norm", "sum_number")
    BALLOT_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    STAGE_FIELD_NUMBER: _ClassVar[int]
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    SQUARED_NORM_FIELD_NUMBER: _ClassVar[int]
    SUM_NUMBER_FIELD_NUMBER: _ClassVar[int]
    ballot: Ballot
    step: int
    attempt: int
    stage: int
    digest: bytes
    squared_norm: float
    sum_number: int
    def __init__(self, ballot: _Optional[_Union[Ballot, _Mapping]] = ..., step: _Optional[int] = ..., attempt: _Optional[int] = ..., stage: _Optional[int] = ..., digest: _Optional[bytes] = ..., squared_norm: _Optional[float] = ..., sum_number: _Optional[int] = ...) -> None: ...

class Stalled(_message.Message):
    __slots__ = ("ballot", "step", "attempt", "microbatch", "peer", "reason", "unsent", "summing", "sum_number")
    BALLOT_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    MICROBATCH_FIELD_NUMBER: _ClassVar[int]
    PEER_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    UNSENT_FIELD_NUMBER: _ClassVar[int]
    SUMMING_FIELD_NUMBER: _ClassVar[int]
    SUM_NUMBER_FIELD_NUMBER: _ClassVar[int]
    ballot: Ballot
    step: int
    attempt: int
    microbatch: int
    peer: bytes
    reason: str
    unsent: bool
    summing: int
    sum_number: int
    def __init__(self, ballot: _Optional[_Union[Ballot, _Mapping]] = ..., step: _Optional[int] = ..., attempt: _Optional[int] = ..., microbatch: _Optional[int] = ..., peer: _Optional[bytes] = ..., reason: _Optional[str] = ..., unsent: _Optional[bool] = ..., summing: _Optional[int] = ..., sum_number: _Optional[int] = ...) -> None: ...

class AppliedReport(_message.Message):
    __slots__ = ("ballot", "stage", "step", "state_id", "digest")
    BALLOT_FIELD_NUMBER: _ClassVar[int]
    STAGE_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    STATE_ID_FIELD_NUMBER: _ClassVar[int]
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    ballot: Ballot
    stage: int
    step: int
    state_id: bytes
    digest: bytes
    def __init__(self, ballot: _Optional[_Union[Ballot, _Mapping]] = ..., stage: _Optional[int] = ..., step: _Optional[int] = ..., state_id: _Optional[bytes] = ..., digest: _Optional[bytes] = ...) -> None: ...

class Evaluated(_message.Message):
    __slots__ = ("ballot", "parent", "microbatch", "loss_sum", "tokens")
    BALLOT_FIELD_NUMBER: _ClassVar[int]
    PARENT_FIELD_NUMBER: _ClassVar[int]
    MICROBATCH_FIELD_NUMBER: _ClassVar[int]
    LOSS_SUM_FIELD_NUMBER: _ClassVar[int]
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    ballot: Ballot
    parent: bytes
    microbatch: int
    loss_sum: float
    tokens: int
    def __init__(self, ballot: _Optional[_Union[Ballot, _Mapping]] = ..., parent: _Optional[bytes] = ..., microbatch: _Optional[int] = ..., loss_sum: _Optional[float] = ..., tokens: _Optional[int] = ...) -> None: ...

class Held(_message.Message):
    __slots__ = ("ballot", "record")
    BALLOT_FIELD_NUMBER: _ClassVar[int]
    RECORD_FIELD_NUMBER: _ClassVar[int]
    ballot: Ballot
    record: bytes
    def __init__(self, ballot: _Optional[_Union[Ballot, _Mapping]] = ..., record: _Optional[bytes] = ...) -> None: ...

class Proposed(_message.Message):
    __slots__ = ("ballot", "record", "shares")
    BALLOT_FIELD_NUMBER: _ClassVar[int]
    RECORD_FIELD_NUMBER: _ClassVar[int]
    SHARES_FIELD_NUMBER: _ClassVar[int]
    ballot: Ballot
    record: Record
    shares: ShareRows
    def __init__(self, ballot: _Optional[_Union[Ballot, _Mapping]] = ..., record: _Optional[_Union[Record, _Mapping]] = ..., shares: _Optional[_Union[ShareRows, _Mapping]] = ...) -> None: ...

class Promise(_message.Message):
    __slots__ = ("ballot", "head", "held", "decided")
    BALLOT_FIELD_NUMBER: _ClassVar[int]
    HEAD_FIELD_NUMBER: _ClassVar[int]
    HELD_FIELD_NUMBER: _ClassVar[int]
    DECIDED_FIELD_NUMBER: _ClassVar[int]
    ballot: Ballot
    head: bytes
    held: _containers.RepeatedCompositeFieldContainer[Proposed]
    decided: _containers.RepeatedCompositeFieldContainer[Proposed]
    def __init__(self, ballot: _Optional[_Union[Ballot, _Mapping]] = ..., head: _Optional[bytes] = ..., held: _Optional[_Iterable[_Union[Proposed, _Mapping]]] = ..., decided: _Optional[_Iterable[_Union[Proposed, _Mapping]]] = ...) -> None: ...

class Prepare(_message.Message):
    __slots__ = ("ballot", "head", "decided", "forks")
    BALLOT_FIELD_NUMBER: _ClassVar[int]
    HEAD_FIELD_NUMBER: _ClassVar[int]
    DECIDED_FIELD_NUMBER: _ClassVar[int]
    FORKS_FIELD_NUMBER: _ClassVar[int]
    ballot: Ballot
    head: bytes
    decided: _containers.RepeatedCompositeFieldContainer[Proposed]
    forks: bool
    def __init__(self, ballot: _Optional[_Union[Ballot, _Mapping]] = ..., head: _Optional[bytes] = ..., decided: _Optional[_Iterable[_Union[Proposed, _Mapping]]] = ..., forks: _Optional[bool] = ...) -> None: ...

class Propose(_message.Message):
    __slots__ = ("ballot", "record", "shares")
    BALLOT_FIELD_NUMBER: _ClassVar[int]
    RECORD_FIELD_NUMBER: _ClassVar[int]
    SHARES_FIELD_NUMBER: _ClassVar[int]
    ballot: Ballot
    record: Record
    shares: ShareRows
    def __init__(self, ballot: _Optional[_Union[Ballot, _Mapping]] = ..., record: _Optional[_Union[Record, _Mapping]] = ..., shares: _Optional[_Union[ShareRows, _Mapping]] = ...) -> None: ...

class Decide(_message.Message):
    __slots__ = ("ballot", "record", "shares", "contacts", "above")
    BALLOT_FIELD_NUMBER: _ClassVar[int]
    RECORD_FIELD_NUMBER: _ClassVar[int]
    SHARES_FIELD_NUMBER: _ClassVar[int]
    CONTACTS_FIELD_NUMBER: _ClassVar[int]
    ABOVE_FIELD_NUMBER: _ClassVar[int]
    ballot: Ballot
    record: Record
    shares: ShareRows
    contacts: ContactRows
    above: bytes
    def __init__(self, ballot: _Optional[_Union[Ballot, _Mapping]] = ..., record: _Optional[_Union[Record, _Mapping]] = ..., shares: _Optional[_Union[ShareRows, _Mapping]] = ..., contacts: _Optional[_Union[ContactRows, _Mapping]] = ..., above: _Optional[bytes] = ...) -> None: ...

class Summary(_message.Message):
    __slots__ = ("ballot", "head", "step", "tokens", "loss", "seatings", "voters", "state_ids", "contacts", "height", "lineage", "squared_norms", "generations", "rebuilds", "lossy_forks", "epoch", "points", "rollback")
    BALLOT_FIELD_NUMBER: _ClassVar[int]
    HEAD_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    LOSS_FIELD_NUMBER: _ClassVar[int]
    SEATINGS_FIELD_NUMBER: _ClassVar[int]
    VOTERS_FIELD_NUMBER: _ClassVar[int]
    STATE_IDS_FIELD_NUMBER: _ClassVar[int]
    CONTACTS_FIELD_NUMBER: _ClassVar[int]
    HEIGHT_FIELD_NUMBER: _ClassVar[int]
    LINEAGE_FIELD_NUMBER: _ClassVar[int]
    SQUARED_NORMS_FIELD_NUMBER: _ClassVar[int]
    GENERATIONS_FIELD_NUMBER: _ClassVar[int]
    REBUILDS_FIELD_NUMBER: _ClassVar[int]
    LOSSY_FORKS_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    POINTS_FIELD_NUMBER: _ClassVar[int]
    ROLLBACK_FIELD_NUMBER: _ClassVar[int]
    ballot: Ballot
    head: bytes
    step: int
    tokens: int
    loss: float
    seatings: SeatingRows
    voters: MemberRows
    state_ids: bytes
    contacts: ContactRows
    height: int
    lineage: bytes
    squared_norms: _containers.RepeatedScalarFieldContainer[float]
    generations: _containers.RepeatedScalarFieldContainer[int]
    rebuilds: _containers.RepeatedCompositeFieldContainer[Rebuild]
    lossy_forks: int
    epoch: int
    points: _containers.RepeatedCompositeFieldContainer[Point]
    rollback: Rollback
    def __init__(self, ballot: _Optional[_Union[Ballot, _Mapping]] = ..., head: _Optional[bytes] = ..., step: _Optional[int] = ..., tokens: _Optional[int] = ..., loss: _Optional[float] = ..., seatings: _Optional[_Union[SeatingRows, _Mapping]] = ..., voters: _Optional[_Union[MemberRows, _Mapping]] = ..., state_ids: _Optional[bytes] = ..., contacts: _Optional[_Union[ContactRows, _Mapping]] = ..., height: _Optional[int] = ..., lineage: _Optional[bytes] = ..., squared_norms: _Optional[_Iterable[float]] = ..., generations: _Optional[_Iterable[int]] = ..., rebuilds: _Optional[_Iterable[_Union[Rebuild, _Mapping]]] = ..., lossy_forks: _Optional[int] = ..., epoch: _Optional[int] = ..., points: _Optional[_Iterable[_Union[Point, _Mapping]]] = ..., rollback: _Optional[_Union[Rollback, _Mapping]] = ...) -> None: ...

class Yield(_message.Message):
    __slots__ = ("ballot", "to")
    BALLOT_FIELD_NUMBER: _ClassVar[int]
    TO_FIELD_NUMBER: _ClassVar[int]
    ballot: Ballot
    to: Contact
    def __init__(self, ballot: _Optional[_Union[Ballot, _Mapping]] = ..., to: _Optional[_Union[Contact, _Mapping]] = ...) -> None: ...

class Meeting(_message.Message):
    __slots__ = ("word", "ballot", "lineage", "step", "covers", "voters", "lossy_forks", "epoch")
    WORD_FIELD_NUMBER: _ClassVar[int]
    BALLOT_FIELD_NUMBER: _ClassVar[int]
    LINEAGE_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    COVERS_FIELD_NUMBER: _ClassVar[int]
    VOTERS_FIELD_NUMBER: _ClassVar[int]
    LOSSY_FORKS_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    word: str
    ballot: Ballot
    lineage: bytes
    step: int
    covers: bool
    voters: MemberRows
    lossy_forks: int
    epoch: int
    def __init__(self, word: _Optional[str] = ..., ballot: _Optional[_Union[Ballot, _Mapping]] = ..., lineage: _Optional[bytes] = ..., step: _Optional[int] = ..., covers: _Optional[bool] = ..., voters: _Optional[_Union[MemberRows, _Mapping]] = ..., lossy_forks: _Optional[int] = ..., epoch: _Optional[int] = ...) -> None: ...

class SeatWork(_message.Message):
    __slots__ = ("stage", "role", "generation", "microbatches", "taken", "helped", "sum_number")
    STAGE_FIELD_NUMBER: _ClassVar[int]
    ROLE_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    MICROBATCHES_FIELD_NUMBER: _ClassVar[int]
    TAKEN_FIELD_NUMBER: _ClassVar[int]
    HELPED_FIELD_NUMBER: _ClassVar[int]
    SUM_NUMBER_FIELD_NUMBER: _ClassVar[int]
    stage: int
    role: Role
    generation: int
    microbatches: _containers.RepeatedScalarFieldContainer[int]
    taken: _containers.RepeatedScalarFieldContainer[int]
    helped: _containers.RepeatedScalarFieldContainer[int]
    sum_number: int
    def __init__(self, stage: _Optional[int] = ..., role: _Optional[_Union[Role, str]] = ..., generation: _Optional[int] = ..., microbatches: _Optional[_Iterable[int]] = ..., taken: _Optional[_Iterable[int]] = ..., helped: _Optional[_Iterable[int]] = ..., sum_number: _Optional[int] = ...) -> None: ...

class OpenStep(_message.Message):
    __slots__ = ("ballot", "step", "attempt", "parent", "seats", "routes", "contacts", "watch", "amendment", "without", "detours")
    BALLOT_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    PARENT_FIELD_NUMBER: _ClassVar[int]
    SEATS_FIELD_NUMBER: _ClassVar[int]
    ROUTES_FIELD_NUMBER: _ClassVar[int]
    CONTACTS_FIELD_NUMBER: _ClassVar[int]
    WATCH_FIELD_NUMBER: _ClassVar[int]
    AMENDMENT_FIELD_NUMBER: _ClassVar[int]
    WITHOUT_FIELD_NUMBER: _ClassVar[int]
    DETOURS_FIELD_NUMBER: _ClassVar[int]
    ballot: Ballot
    step: int
    attempt: int
    parent: bytes
    seats: _containers.RepeatedCompositeFieldContainer[SeatWork]
    routes: _containers.RepeatedCompositeFieldContainer[Route]
    contacts: ContactRows
    watch: bytes
    amendment: int
    without: bytes
    detours: _containers.RepeatedCompositeFieldContainer[Detour]
    def __init__(self, ballot: _Optional[_Union[Ballot, _Mapping]] = ..., step: _Optional[int] = ..., attempt: _Optional[int] = ..., parent: _Optional[bytes] = ..., seats: _Optional[_Iterable[_Union[SeatWork, _Mapping]]] = ..., routes: _Optional[_Iterable[_Union[Route, _Mapping]]] = ..., contacts: _Optional[_Union[ContactRows, _Mapping]] = ..., watch: _Optional[bytes] = ..., amendment: _Optional[int] = ..., without: _Optional[bytes] = ..., detours: _Optional[_Iterable[_Union[Detour, _Mapping]]] = ...) -> None: ...

class Revoke(_message.Message):
    __slots__ = ("ballot", "step", "attempt")
    BALLOT_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    ballot: Ballot
    step: int
    attempt: int
    def __init__(self, ballot: _Optional[_Union[Ballot, _Mapping]] = ..., step: _Optional[int] = ..., attempt: _Optional[int] = ...) -> None: ...

class Counted(_message.Message):
    __slots__ = ("stage", "microbatches")
    STAGE_FIELD_NUMBER: _ClassVar[int]
    MICROBATCHES_FIELD_NUMBER: _ClassVar[int]
    stage: int
    microbatches: bytes
    def __init__(self, stage: _Optional[int] = ..., microbatches: _Optional[bytes] = ...) -> None: ...

class Detour(_message.Message):
    __slots__ = ("stage", "peer", "amendment", "whole", "microbatches")
    STAGE_FIELD_NUMBER: _ClassVar[int]
    PEER_FIELD_NUMBER: _ClassVar[int]
    AMENDMENT_FIELD_NUMBER: _ClassVar[int]
    WHOLE_FIELD_NUMBER: _ClassVar[int]
    MICROBATCHES_FIELD_NUMBER: _ClassVar[int]
    stage: int
    peer: bytes
    amendment: int
    whole: bool
    microbatches: bytes
    def __init__(self, stage: _Optional[int] = ..., peer: _Optional[bytes] = ..., amendment: _Optional[int] = ..., whole: _Optional[bool] = ..., microbatches: _Optional[bytes] = ...) -> None: ...

class Revoked(_message.Message):
    __slots__ = ("ballot", "step", "attempt", "amendment", "seats")
    BALLOT_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    AMENDMENT_FIELD_NUMBER: _ClassVar[int]
    SEATS_FIELD_NUMBER: _ClassVar[int]
    ballot: Ballot
    step: int
    attempt: int
    amendment: int
    seats: _containers.RepeatedCompositeFieldContainer[Counted]
    def __init__(self, ballot: _Optional[_Union[Ballot, _Mapping]] = ..., step: _Optional[int] = ..., attempt: _Optional[int] = ..., amendment: _Optional[int] = ..., seats: _Optional[_Iterable[_Union[Counted, _Mapping]]] = ...) -> None: ...

class StartReduce(_message.Message):
    __slots__ = ("ballot", "step", "attempt", "stage", "owners", "without", "contacts", "sum_number")
    BALLOT_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    STAGE_FIELD_NUMBER: _ClassVar[int]
    OWNERS_FIELD_NUMBER: _ClassVar[int]
    WITHOUT_FIELD_NUMBER: _ClassVar[int]
    CONTACTS_FIELD_NUMBER: _ClassVar[int]
    SUM_NUMBER_FIELD_NUMBER: _ClassVar[int]
    ballot: Ballot
    step: int
    attempt: int
    stage: int
    owners: bytes
    without: bytes
    contacts: ContactRows
    sum_number: int
    def __init__(self, ballot: _Optional[_Union[Ballot, _Mapping]] = ..., step: _Optional[int] = ..., attempt: _Optional[int] = ..., stage: _Optional[int] = ..., owners: _Optional[bytes] = ..., without: _Optional[bytes] = ..., contacts: _Optional[_Union[ContactRows, _Mapping]] = ..., sum_number: _Optional[int] = ...) -> None: ...

class VoidStep(_message.Message):
    __slots__ = ("ballot", "step", "attempt", "reason")
    BALLOT_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    ballot: Ballot
    step: int
    attempt: int
    reason: str
    def __init__(self, ballot: _Optional[_Union[Ballot, _Mapping]] = ..., step: _Optional[int] = ..., attempt: _Optional[int] = ..., reason: _Optional[str] = ...) -> None: ...

class Probe(_message.Message):
    __slots__ = ("ballot", "member", "address")
    BALLOT_FIELD_NUMBER: _ClassVar[int]
    MEMBER_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    ballot: Ballot
    member: Member
    address: bytes
    def __init__(self, ballot: _Optional[_Union[Ballot, _Mapping]] = ..., member: _Optional[_Union[Member, _Mapping]] = ..., address: _Optional[bytes] = ...) -> None: ...

class OpenEvaluation(_message.Message):
    __slots__ = ("ballot", "parent", "step", "routes", "contacts")
    BALLOT_FIELD_NUMBER: _ClassVar[int]
    PARENT_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    ROUTES_FIELD_NUMBER: _ClassVar[int]
    CONTACTS_FIELD_NUMBER: _ClassVar[int]
    ballot: Ballot
    parent: bytes
    step: int
    routes: _containers.RepeatedCompositeFieldContainer[Route]
    contacts: ContactRows
    def __init__(self, ballot: _Optional[_Union[Ballot, _Mapping]] = ..., parent: _Optional[bytes] = ..., step: _Optional[int] = ..., routes: _Optional[_Iterable[_Union[Route, _Mapping]]] = ..., contacts: _Optional[_Union[ContactRows, _Mapping]] = ...) -> None: ...

class Standing(_message.Message):
    __slots__ = ("ballot", "phase", "sentence", "step", "validation_step", "validation_loss", "exit_code", "order", "serial")
    BALLOT_FIELD_NUMBER: _ClassVar[int]
    PHASE_FIELD_NUMBER: _ClassVar[int]
    SENTENCE_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    VALIDATION_STEP_FIELD_NUMBER: _ClassVar[int]
    VALIDATION_LOSS_FIELD_NUMBER: _ClassVar[int]
    EXIT_CODE_FIELD_NUMBER: _ClassVar[int]
    ORDER_FIELD_NUMBER: _ClassVar[int]
    SERIAL_FIELD_NUMBER: _ClassVar[int]
    ballot: Ballot
    phase: str
    sentence: str
    step: int
    validation_step: int
    validation_loss: float
    exit_code: int
    order: Order
    serial: int
    def __init__(self, ballot: _Optional[_Union[Ballot, _Mapping]] = ..., phase: _Optional[str] = ..., sentence: _Optional[str] = ..., step: _Optional[int] = ..., validation_step: _Optional[int] = ..., validation_loss: _Optional[float] = ..., exit_code: _Optional[int] = ..., order: _Optional[_Union[Order, _Mapping]] = ..., serial: _Optional[int] = ...) -> None: ...

class Order(_message.Message):
    __slots__ = ("action", "serial", "signature")
    ACTION_FIELD_NUMBER: _ClassVar[int]
    SERIAL_FIELD_NUMBER: _ClassVar[int]
    SIGNATURE_FIELD_NUMBER: _ClassVar[int]
    action: str
    serial: int
    signature: str
    def __init__(self, action: _Optional[str] = ..., serial: _Optional[int] = ..., signature: _Optional[str] = ...) -> None: ...

class PipeHeader(_message.Message):
    __slots__ = ("ballot", "step", "attempt", "parent", "kind", "hop", "route")
    BALLOT_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    PARENT_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    HOP_FIELD_NUMBER: _ClassVar[int]
    ROUTE_FIELD_NUMBER: _ClassVar[int]
    ballot: Ballot
    step: int
    attempt: int
    parent: bytes
    kind: str
    hop: int
    route: Route
    def __init__(self, ballot: _Optional[_Union[Ballot, _Mapping]] = ..., step: _Optional[int] = ..., attempt: _Optional[int] = ..., parent: _Optional[bytes] = ..., kind: _Optional[str] = ..., hop: _Optional[int] = ..., route: _Optional[_Union[Route, _Mapping]] = ...) -> None: ...

class ReduceHeader(_message.Message):
    __slots__ = ("ballot", "step", "attempt", "stage", "kind", "first", "count", "sum_number")
    BALLOT_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    STAGE_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    FIRST_FIELD_NUMBER: _ClassVar[int]
    COUNT_FIELD_NUMBER: _ClassVar[int]
    SUM_NUMBER_FIELD_NUMBER: _ClassVar[int]
    ballot: Ballot
    step: int
    attempt: int
    stage: int
    kind: str
    first: int
    count: int
    sum_number: int
    def __init__(self, ballot: _Optional[_Union[Ballot, _Mapping]] = ..., step: _Optional[int] = ..., attempt: _Optional[int] = ..., stage: _Optional[int] = ..., kind: _Optional[str] = ..., first: _Optional[int] = ..., count: _Optional[int] = ..., sum_number: _Optional[int] = ...) -> None: ...
