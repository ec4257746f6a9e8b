"""Unsupported features must return a clear error at once."""

import e2b
from harness.cases import Absent, case
from kit import go, raises, takes


async def refused(call):
    async with raises(Exception) as seen:
        await go(call())
    assert "not supported by this server" in str(seen.error), repr(seen.error)


@case("missing")
async def forks_and_snapshots_say_so(sdk):
    async with sdk.sandbox() as sandbox:
        await refused(lambda: sandbox.fork())
        await refused(lambda: sandbox.create_snapshot())
        await refused(lambda: sdk.Sandbox.list_snapshots().next_items())
        assert await go(sandbox.is_running())


@case("missing")
async def options_of_create_say_so(sdk):
    takes(sdk.Sandbox.create, "iam")
    for options in (
        {"network": {"egress_proxy": {"address": "192.0.2.1:1080"}}},
        {"network": {"allow_out": ["*.example.com"]}},
        {"network": {"https_ports": [443]}},
        {"iam": {"tokens": {"a": {"audience": "b", "token_type": "JWT-SVID"}}}},
    ):
        await refused(lambda: sdk.Sandbox.create(**options))


@case("missing")
async def secrets_say_so(sdk):
    secret = getattr(e2b, "AsyncSecret" if sdk.name == "async" else "Secret", None)
    if secret is None:
        raise Absent("no secrets")
    await refused(lambda: secret.create("s", value="x"))
