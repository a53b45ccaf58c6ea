"""What schemathesis makes up, made to meet what is there, and kept short.

Most ids that are made up name nothing, and most of the server would never be reached. About half of those that have the right
form are replaced by ids of things that the test has prepared. Leases and execs that are made up may be as long as they like,
and the host is small: they are made short.
"""

import json
import os

import schemathesis

PREPARED = json.loads(os.environ["CUBICLE_PREPARED"])
LONGEST_LEASE = 1
LONGEST_EXEC = 0.5
LONGEST_GRACE = 0.5
# What the other cases need must outlive these.
RUNS = {"create_exec", "run_once"}
ENDS = {"release_lease", "manager_release_lease", "revoke_key", "end_exec", "signal_exec"}
# Commands that are made up name programs that nobody has.
COMMANDS = ["true", "exit 3", "cat", "echo out; echo err >&2", "printf '\\377'", "kill -9 $$", "sleep 9", "touch made"]
CHANGES = {"put_template", "delete_template", "replace_tenant"}


# Whoever reads the output of one of these, or asks for it once more, waits until it has ended. A context is an exec as well and
# runs until it is deleted; schemathesis remembers the ids that it was answered with.
RUNNING = [PREPARED["running"]]
WAIT = {"read_output", "create_exec", "run_once"}


def chosen(operation, name, given):
    """The same value is always replaced by the same one, so that a run can be repeated."""
    if operation in CHANGES and given == "default":
        return "another"
    candidates = PREPARED.get(name, [])
    if not candidates or not isinstance(given, str):
        return given
    prefix, body = candidates[0].split("-")
    if operation in ENDS:
        return prefix + "-" + "a" * len(body) if given in candidates else given
    if given in RUNNING and operation in WAIT:
        return candidates[0]
    if not given.startswith(prefix + "-") or len(given) != len(candidates[0]):
        return given
    number = sum(given.encode())
    choice = given if number % 2 else candidates[number // 2 % len(candidates)]
    return candidates[0] if choice in RUNNING and operation in WAIT else choice


def at_most(values, name, most):
    given = values.get(name)
    if isinstance(given, (int, float)) and not isinstance(given, bool) and given > most:
        values[name] = most


@schemathesis.hook
def before_call(ctx, case, kwargs):
    operation = case.operation.definition.raw.get("operationId")
    for name in case.path_parameters or {}:
        case.path_parameters[name] = chosen(operation, name, case.path_parameters[name])
    if isinstance(case.query, dict):
        at_most(case.query, "grace_seconds", LONGEST_GRACE)
    if isinstance(case.body, dict):
        for name in ("ttl_seconds", "ttlSeconds"):
            at_most(case.body, name, LONGEST_LEASE)
        at_most(case.body, "timeout_seconds", LONGEST_EXEC)
        if case.body.get("exec_id") in RUNNING:
            del case.body["exec_id"]
        command = case.body.get("command")
        if operation in RUNS and isinstance(command, str) and command.strip() and len(command) % 2:
            case.body["command"] = COMMANDS[sum(command.encode(errors="replace")) % len(COMMANDS)]


@schemathesis.hook
def after_call(ctx, case, response):
    if case.operation.definition.raw.get("operationId") == "create_context" and response.status_code < 300:
        RUNNING.append(response.json()["context_id"])


@schemathesis.serializer("application/x-tar")
def archive(ctx, value):
    """Bytes as they are; most are no archive, and must be refused as such."""
    return value if isinstance(value, bytes) else str(value).encode()


@schemathesis.deserializer("application/x-ndjson")
def lines(ctx, response):
    """The document describes one line; all must be of that form, and one is enough to look at."""
    parsed = [json.loads(line) for line in response.text.splitlines() if line]
    return parsed[0] if parsed else None
