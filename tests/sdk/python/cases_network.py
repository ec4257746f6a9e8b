"""Network settings, tested with a simulated outside network on this host."""

import os

import e2b
from harness.cases import case
from kit import go, raises, takes

FIRST, SECOND = os.environ["SDK_OUTSIDE"].split(",")
PORT = os.environ["SDK_OUTSIDE_PORT"]
HOST = os.environ["SDK_HOST"]


async def reaches(sandbox, address, port=PORT):
    """Whether a request from inside gets a response."""
    command = f"curl --noproxy '*' -s -o /dev/null -w '%{{http_code}}' --max-time 2 http://{address}:{port}/ || true"
    return (await go(sandbox.commands.run(command))).stdout == "204"


@case("network")
async def the_outside_is_reached_and_the_host_is_not(sdk):
    async with sdk.sandbox() as sandbox:
        assert await reaches(sandbox, FIRST)
        assert not await reaches(sandbox, HOST)
        api = os.environ["E2B_API_URL"].rsplit(":", 1)[1]
        assert not await reaches(sandbox, HOST, api)
        assert not await reaches(sandbox, "127.0.0.1", api)
        assert not await reaches(sandbox, "169.254.169.254", 80)


@case("network")
async def without_internet_nothing_is_reached(sdk):
    async with sdk.sandbox(allow_internet_access=False) as sandbox:
        assert not await reaches(sandbox, FIRST)
        assert (await go(sandbox.get_info())).allow_internet_access is False


@case("network")
async def allowed_addresses_win_over_denied_ones(sdk):
    network = {"deny_out": ["0.0.0.0/0"], "allow_out": [FIRST]}
    async with sdk.sandbox(network=network) as sandbox:
        assert await reaches(sandbox, FIRST)
        assert not await reaches(sandbox, SECOND)
        info = await go(sandbox.get_info())
        assert info.network["allow_out"] == [FIRST] and info.network["deny_out"] == ["0.0.0.0/0"]


@case("network")
async def selectors_of_the_sdk_work(sdk):
    network = {"deny_out": lambda ctx: [ctx.all_traffic], "allow_out": lambda ctx: [f"{SECOND}/32"]}
    async with sdk.sandbox(network=network) as sandbox:
        assert await reaches(sandbox, SECOND)
        assert not await reaches(sandbox, FIRST)


@case("network")
async def a_policy_is_replaced_while_the_sandbox_runs(sdk):
    async with sdk.sandbox() as sandbox:
        assert await reaches(sandbox, FIRST) and await reaches(sandbox, SECOND)
        await go(sandbox.update_network({"deny_out": [SECOND]}))
        assert await reaches(sandbox, FIRST) and not await reaches(sandbox, SECOND)
        assert (await go(sandbox.get_info())).network["deny_out"] == [SECOND]
        await go(sdk.Sandbox.update_network(sandbox.sandbox_id, {"allow_internet_access": False}))
        assert not await reaches(sandbox, FIRST)
        await go(sandbox.update_network({}))
        assert await reaches(sandbox, FIRST) and await reaches(sandbox, SECOND)


@case("network")
async def a_policy_survives_a_pause(sdk):
    async with sdk.sandbox(network={"deny_out": [SECOND]}) as sandbox:
        takes(sandbox.pause, "mode")
        for mode in ("full", "filesystem"):
            await go(sandbox.pause(mode=mode))
            await go(sandbox.connect(timeout=60))
            assert await reaches(sandbox, FIRST) and not await reaches(sandbox, SECOND), mode


@case("network")
async def two_sandboxes_do_not_see_each_other(sdk):
    async with sdk.sandbox() as first, sdk.sandbox() as second:
        await go(first.commands.run("python3 -m http.server 8000", background=True, timeout=0))
        address = (await go(first.commands.run("hostname -I"))).stdout.split()
        for one in address:
            command = f"curl -s --max-time 1 http://{one}:8000/ || echo refused"
            assert (await go(second.commands.run(command))).stdout == "refused\n"


@case("network")
async def nonsense_is_refused(sdk):
    for network in ({"deny_out": ["not an address"]}, {"allow_out": ["300.1.1.1"]}, {"deny_out": ["example.com"]}):
        async with raises(e2b.SandboxException):
            await go(sdk.Sandbox.create(network=network))
