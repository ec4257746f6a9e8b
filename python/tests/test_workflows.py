"""Workflows: the examples of the repository, run and followed."""

import asyncio
import signal

import pytest
from conftest import ROOT, TEMPLATE, program, wait_until
from harness.server import Server

import isopod
from isopod.errors import InvalidRequestError, NotFoundError
from isopod.workflows import RunFailed

REPORT = ROOT / "examples" / "workflows" / "report.yaml"
SMALL = {"name": "small", "nodes": [{"id": "one", "command": "echo 1"}, {"id": "two", "code": "print(2)", "depends_on": ["one"]}]}


def test_a_file_is_run_to_its_end(alive):
    seen = []
    state = isopod.workflow(REPORT).run(check=True, on_event=seen.append)
    assert (state.status, state.reason, state.is_over) == ("completed", "completed", True)
    assert state.output("average")["stdout"] == "3 people, 40.7 years on average\n"
    assert isopod.session(state.run_id).read_file("report.txt") == b"average age: 40.7\n"
    assert [seen[0].type, seen[-1].type] == ["RunStarted", "RunEnded"]
    assert [event.id for event in seen] == list(range(1, len(seen) + 1))
    assert {event.node for event in seen if event.type == "AgentCompleted"} == {"collect", "average", "oldest", "write"}
    wait_until(lambda: isopod.Run(state.run_id).state().raw["cleaned_up"])
    assert not alive(state.output("average")["sandbox_id"])
    with pytest.raises(KeyError):
        state.node("none")


def test_a_dictionary_is_run_without_blocking():
    async def use():
        return await asyncio.gather(*(isopod.workflow(SMALL).arun(check=True) for _ in range(2)))

    one, two = asyncio.run(use())
    assert one.run_id != two.run_id
    assert [state.output("two")["stdout"] for state in (one, two)] == ["2\n", "2\n"]


def test_events_continue_after_the_last_one_seen():
    run = isopod.workflow(SMALL).start()
    everything = list(run.events())
    assert [event.id for event in run.events(after=3)] == [event.id for event in everything[3:]]


def test_who_follows_a_run_survives_restarts_of_the_server():
    waits = "until [ -e {0} ]; do sleep 0.1; done"
    nodes = [{"id": "one", "command": waits.format("one")}, {"id": "two", "command": waits.format("two"), "depends_on": ["one"]}]
    ends = {"one": signal.SIGKILL, "two": signal.SIGTERM}
    server = Server(program(), prepare=TEMPLATE)
    try:
        server.start()
        server.wait_for_template(TEMPLATE)
        place = {"api_key": server.key, "api_url": server.url}
        run, seen = isopod.workflow({"nodes": nodes}, **place).start(), []
        for event in run.events():
            seen.append(event)
            if event.type == "AgentStarted" and event.node in ends:
                restart(server, ends.pop(event.node))
                isopod.session(run.run_id, **place).execute(f"open('{event.node}', 'w').close()")
        assert not ends and seen[-1].type == "RunEnded" and run.state().status == "completed"
        assert [event.id for event in seen] == list(range(1, len(seen) + 1)), "an event was lost or came twice"
    finally:
        problems = server.stop()
    assert not problems, problems


def restart(server, end):
    server.process.send_signal(end)
    server.process.wait()
    server.log.close()
    (server.state / "templates").unlink()
    server.start()


def test_a_failed_run_is_a_state_or_an_exception():
    failing = {"nodes": [{"id": "bad", "command": "exit 3"}]}
    assert isopod.workflow(failing).run().reason == "node_failed"
    with pytest.raises(RunFailed) as failed:
        isopod.workflow(failing).run(check=True)
    assert failed.value.state.node("bad")["status"] == "failed"


def test_a_person_approves_or_stops():
    waiting = {"nodes": [{"id": "ask", "command": "echo yes", "approval": True}]}
    run = isopod.workflow(waiting).start()
    for event in run.events():
        if event.needs_approval:
            run.approve(event.node)
    assert run.state().status == "completed"
    run = isopod.workflow(waiting).start()
    run.stop()
    assert run.wait().reason == "stopped"


def test_a_person_approves_or_stops_without_blocking():
    waiting = {"nodes": [{"id": "ask", "command": "echo yes", "approval": True}]}

    async def use():
        run = await isopod.workflow(waiting).astart()
        async for event in run.aevents():
            if event.needs_approval:
                await run.aapprove(event.node, approved=False)
        stopped = await isopod.workflow(waiting).astart()
        await stopped.astop()
        return (await run.astate()).reason, (await stopped.await_end()).reason

    assert asyncio.run(use()) == ("rejected", "stopped")


def test_mistakes_are_told(tmp_path):
    with pytest.raises(InvalidRequestError, match="cycle"):
        isopod.workflow({"nodes": [{"id": "a", "command": "true", "depends_on": ["a"]}]}).run()
    wrong = tmp_path / "wrong.yaml"
    wrong.write_text("nodes: [")
    with pytest.raises(InvalidRequestError):
        isopod.workflow(wrong).run()
    with pytest.raises(FileNotFoundError):
        isopod.workflow(tmp_path / "none.yaml").run()
    with pytest.raises(NotFoundError):
        list(isopod.Run("no-such-run").events())
