"""What goes wrong in the field, by number, and the tests that try it (docs/field-cases.md).

A test is a file, or `file::function`. `make field` runs all of them; how often one that draws or strikes goes through its case
there, it says itself (`@pytest.mark.field(times)`).
"""

from __future__ import annotations

FIELD, UNIT = "tests/integration/test_field_", "tests/unit/"
CLI, TRANSPORT = "tests/integration/test_cli_bad_input.py::", "tests/conformance/test_transport.py::"

CASES: dict[str, tuple[str, ...]] = {
    "1": (FIELD + "lost_peer.py",),
    "2": (
        FIELD + "first_contact.py",
        CLI + "test_bad_invite",
        CLI + "test_bad_flag",
        CLI + "test_nobody_at_the_invites_address",
    ),
    "3": (FIELD + "averaging.py",),
    "4": (FIELD + "donor_dies.py", "tests/conformance/test_catch_up.py", UNIT + "test_learning.py"),
    "5": (FIELD + "nan.py", UNIT + "test_reduce.py"),
    "6": (
        FIELD + "double_start.py",
        CLI + "test_port_in_use",
        CLI + "test_same_identity_twice",
        CLI + "test_broken_identity_is_not_replaced",
        "tests/integration/test_trust.py::test_an_identity_runs_once",
        UNIT + "test_identity.py",
    ),
    "7": (FIELD + "saving.py", UNIT + "test_checkpoint_store.py", UNIT + "test_state_store.py", UNIT + "test_event_log.py"),
    "8": (FIELD + "stopping.py", "tests/integration/test_shutdown.py"),
    "9": (
        FIELD + "data.py",
        CLI + "test_data_that_are_not_what_the_manifest_says",
        CLI + "test_ids_above_the_vocabulary",
        CLI + "test_text_that_cannot_be_prepared",
        UNIT + "test_data_store.py",
        UNIT + "test_data_prepare.py",
    ),
    "10": (FIELD + "averaging.py", FIELD + "observer.py", UNIT + "test_metrics.py", UNIT + "test_monitor_observer.py"),
    "11": ("tests/conformance/test_field_streams.py", TRANSPORT + "test_the_queue_of_payloads_is_bounded"),
    "12": ("tests/conformance/test_field_unpickling.py",),
    "message over 4 MB": (TRANSPORT + "test_a_large_payload_in_frames_over_grpcs_default_limit",),
    "256 descriptors, more threads than cores": (FIELD + "lost_peer.py",),
    "private addresses": (
        FIELD + "first_contact.py",
        UNIT + "test_whereabouts.py",
        UNIT + "test_reachable.py",
        UNIT + "test_dial_back.py",
    ),
    "data hub that answers 429": (UNIT + "test_data_store.py::test_a_failed_download_is_explained",),
}


def cases_of(test: str) -> list[str]:
    """The cases that a test, by its id, is for. Of a parametrised one any parameters will do."""
    function = test.partition("[")[0]
    names = {function, function.partition("::")[0]}
    return [case for case, tests in CASES.items() if names & set(tests)]
