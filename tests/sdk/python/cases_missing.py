"""Unsupported features must return a clear error at once. The compatibility page lists what these cases name."""

import e2b
from harness.cases import REFUSED, Absent, case
from kit import go, raises, takes


async def refused(what, call):
    async with raises(Exception) as seen:
        await go(call())
    assert "not supported by this server" in str(seen.error), repr(seen.error)
    REFUSED.get().append(what)


@case("missing")
async def options_of_create_say_so(sdk):
    takes(sdk.Sandbox.create, "iam")
    for what, options in (
        ("MCP gateways: `mcp`", {"mcp": {"exa": {"apiKey": "none"}}}),
        ("workload identity: `iam`", {"iam": {"tokens": {"a": {"audience": "b", "token_type": "JWT-SVID"}}}}),
        ("domain names in `network.allow_out`", {"network": {"allow_out": ["*.example.com"]}}),
        ("`network.rules`", {"network": {"rules": {"example.com": [{"transform": {"headers": {"a": "b"}}}]}}}),
        ("`network.egress_proxy`", {"network": {"egress_proxy": {"address": "192.0.2.1:1080"}}}),
        ("`network.dns_servers`", {"network": {"dns_servers": ["192.0.2.1"]}}),
        ("`network.https_ports`", {"network": {"https_ports": [443]}}),
    ):
        # A version drops fields of the network that it does not know.
        if set(options.get("network", ())) <= set(e2b.SandboxNetworkOpts.__annotations__):
            await refused(what, lambda: sdk.Sandbox.create(**options))


@case("missing")
async def secrets_say_so(sdk):
    secret = getattr(e2b, "AsyncSecret" if sdk.name == "async" else "Secret", None)
    if secret is None:
        raise Absent("no secrets")
    await refused("secrets: `Secret`", lambda: secret.create("s", value="x"))


@case("missing")
async def templates_of_e2b_say_so(sdk):
    for name in ("devcontainer", "mcp-gateway"):
        await refused(f"E2B's template `{name}`", lambda: sdk.Sandbox.create(name))
