"""Workflows whose agents are in the reference service, with a model behind OpenAI's API that says what a case needs."""

import http.client
import json
import threading
from socket import create_server

from endpoint import DRIP, HANG, NAME, page, refuse, say, tool
from lab import agent, node, wait_until
from redis_server import Redis
from web_socket import BINARY, Refused, WebSocket

CASES = []
SUM = {"code": "print(sum(int(line) for line in open('numbers.txt')))"}


def case(function):
    CASES.append(function)
    return function


@case
def an_agent_uses_the_sandbox_of_its_run_and_reports_its_tokens(lab):
    lab.endpoint.script("Add them up", tool("execute_python", SUM), say("It is 55."))
    data = {"id": "data", "command": "seq 1 10 > numbers.txt; echo written"}
    state = lab.run(data, agent("Add them up.", depends_on=["data"], tools=["execute_python", "run_command"]))
    done = node(state, "agent")
    assert (state["status"], done["output"]["result"]) == ("completed", "It is 55."), state
    tried = next(one for one in state["invocations"] if one["agent_id"] == "agent")
    assert (state["total_tokens_used"], tried["tokens_used"], tried["tools_used"]) == (20, 20, ["execute_python"]), state

    (headers, first), (_, second) = lab.endpoint.requests["Add them up"]
    assert (headers["authorization"], first["model"]) == ("Bearer sk-tests", NAME), headers
    assert "written" in first["messages"][1]["content"], "the agent is not told what came before it"
    known = {tool["name"]: tool for tool in lab.api("GET", "/runtime/tools")[1]["tools"]}
    offered = [tool["function"] for tool in first["tools"]]
    assert offered == [known["execute_python"], known["run_command"]], "the schemas are not the server's"
    assert second["messages"][-2]["tool_calls"][0]["id"] == second["messages"][-1]["tool_call_id"], second
    result = lab.endpoint.last_result("Add them up")
    assert result["success"] and result["result"].startswith("STDOUT:\n55"), result


@case
def files_of_an_agent_are_those_of_its_node(lab):
    write = tool("write_file", {"filename": "poem.txt", "content": "roses"})
    lab.endpoint.script("Write a poem", write, say("Done."))
    lab.endpoint.script("Read it", tool("read_file", {"filename": "poem.txt"}), say("Roses."))
    state = lab.run(agent("Write a poem."), {"id": "reader", "prompt": "Read it.", "depends_on": ["agent"]})
    assert node(state, "agent")["output"]["files_generated"] == ["poem.txt"], state
    assert "poem.txt" in lab.endpoint.bodies("Read it")[0]["messages"][1]["content"]
    assert lab.endpoint.last_result("Read it")["result"] == "roses"


@case
def endless_output_does_not_fill_the_context_of_the_model(lab):
    lab.endpoint.script("Print a lot", tool("execute_python", {"code": "print('x' * 100_000)"}), say("Done."))
    lab.endpoint.script("Read a lot", say("Done."))
    state = lab.run(agent("Print a lot."), {"id": "much", "command": "yes | head -c 100000"},
                    {"id": "reader", "prompt": "Read a lot.", "depends_on": ["much"]})
    assert state["status"] == "completed", state
    for text in (lab.endpoint.last_result("Print a lot")["result"], lab.endpoint.bodies("Read a lot")[0]["messages"][1]["content"]):
        assert len(text) < 21_000 and "more characters]" in text, text[-200:]


@case
def errors_of_tools_are_handed_to_the_model(lab):
    broken = tool("execute_python", {"code": "print('before'); 1 / 0"})
    lab.endpoint.script("Divide", broken, tool("no_such_tool", {}), tool("read_file", {"file": "x"}), say("I can't."))
    state = lab.run(agent("Divide."))
    assert state["status"] == "completed", state
    told = [body["messages"][-1]["content"] for body in lab.endpoint.bodies("Divide")[1:]]
    expected = ["ZeroDivisionError", "there is no tool 'no_such_tool'; there are", "invalid arguments"]
    for text, words in zip(told, expected, strict=True):
        assert words in text and '"success": false' in text, told
    assert "before" in told[0], told


@case
def a_model_that_corrects_its_arguments_goes_on(lab):
    unreadable = [tool("run_command", text) for text in ('{"command": "echo', '"echo"')]
    lab.endpoint.script("Correct yourself", *unreadable, tool("run_command", {"command": "echo corrected"}), say("Done."))
    state = lab.run(agent("Correct yourself."))
    assert state["status"] == "completed", state
    assert "no JSON object" in lab.endpoint.bodies("Correct yourself")[1]["messages"][-1]["content"]
    assert "corrected" in lab.endpoint.last_result("Correct yourself")["result"]


@case
def a_model_that_never_sends_json_fails_its_node(lab):
    lab.endpoint.script("Babble", tool("run_command", "echo hello"))
    error = lab.failed(agent("Babble."))
    assert "3 unreadable calls in a row" in error and "run_command" in error, error
    assert len(lab.endpoint.requests["Babble"]) == 3


@case
def a_model_that_never_finishes_fails_its_node_and_its_tokens_count(lab):
    lab.endpoint.script("Go in circles", tool("list_files", {}))
    state = lab.run(agent("Go in circles."))
    assert (state["reason"], state["total_tokens_used"]) == ("node_failed", 300), state
    assert "no answer within 30 turns" in node(state, "agent")["error"], state


@case
def a_model_that_fails_or_is_no_model_fails_its_node(lab):
    lab.endpoint.script("Fail", refuse(500, "the GPUs are on fire"))
    error = lab.failed(agent("Fail."))
    assert "the model's service returned 500" in error and "the GPUs are on fire" in error, error
    lab.endpoint.script("Show a page", page("<html>Sign in</html>"))
    assert "no chat completion; check OPENAI_BASE_URL" in lab.failed(agent("Show a page."))
    lab.endpoint.script("Say nothing", say(""))
    assert "neither text nor a call" in lab.failed(agent("Say nothing."))


@case
def a_model_that_does_not_answer_fails_its_node(lab):
    lab.endpoint.script("Sleep", HANG)
    assert "the model did not answer within 3 s" in lab.failed(agent("Sleep."))


@case
def a_node_is_tried_again_and_starts_from_the_beginning(lab):
    lab.endpoint.script("Try twice", tool("run_command", {"command": "echo x >> tries"}), refuse(503, "busy"), say("Done."))
    state = lab.run(agent("Try twice.", retries=1))
    assert (state["status"], node(state, "agent")["attempts"], state["total_tokens_used"]) == ("completed", 2, 20), state
    assert len(lab.endpoint.bodies("Try twice")[2]["messages"]) == 2, "the second attempt is no new conversation"


@case
def a_tool_that_the_server_lacks_fails_the_node_by_name(lab):
    error = lab.failed(agent("Search.", tools=["ask_a_friend"]))
    assert "the server has no tool ask_a_friend; it has execute_python" in error, error


@case
def an_agent_that_researches_searches_the_web_and_one_that_does_not_waits(lab):
    """Its name says that it should have searched. A person decides whether it tries again."""
    look = tool("web_search", {"query": "isopods & wood"})
    lab.endpoint.script("Look it up", look, say("They eat it."))
    lab.endpoint.script("Guess it", say("They eat it."), look, say("They do."))
    state = lab.run({"id": "research_x", "prompt": "Look it up.", "tools": ["web_search"]}, soft_failures=True)
    assert (state["status"], node(state, "research_x")["output"]["result"]) == ("completed", "They eat it."), state
    assert lab.server.search.queries == ["isopods & wood"]
    result = lab.endpoint.last_result("Look it up")
    assert result["success"] and "https://isopods.example/" in result["result"], result

    run_id = lab.start({"id": "research_y", "prompt": "Guess it.", "tools": ["web_search"]}, soft_failures=True)
    wait_until(lambda: lab.state(run_id)["status"] == "awaitingapproval", lambda: f"{lab.state(run_id)}")
    assert [(one["status"], one["tools_used"]) for one in lab.state(run_id)["invocations"]] == [("paused", [])]
    assert lab.api("POST", f"/runtime/{run_id}/resume", {})[0] == 200
    assert node(lab.ended(run_id), "research_y")["output"]["result"] == "They do."
    assert len(lab.server.search.queries) == 2


@case
def a_node_chooses_another_model(lab):
    lab.endpoint.script("Be large", say("I am."))
    assert lab.run(agent("Be large.", model="large-model"))["status"] == "completed"
    assert [body["model"] for body in lab.endpoint.bodies("Be large")] == ["large-model"]


@case
def an_agent_delegates_and_what_waited_for_it_runs_after_that(lab):
    steps = [{"id": "make", "command": "echo made > made.txt"}, {"id": "helper", "prompt": "Help out.", "depends_on": ["make"]}]
    twisted = [steps[0] | {"depends_on": ["helper"]}, steps[1]]
    wrong = [{"reason": "r", "new_nodes": nodes} for nodes in ([{"id": "x", "command": "true", "code": "1"}], twisted)]
    right = {"reason": "two hands are better", "new_nodes": steps}
    lab.endpoint.script("Delegate it", *(tool("delegate", one) for one in [*wrong, right]), say("Others do it."))
    lab.endpoint.script("Help out", tool("run_command", {"command": "cat made.txt"}), say("Helped."))
    state = lab.run(
        agent("Delegate it.", allow_delegation=True), {"id": "last", "command": "cat made.txt", "depends_on": ["agent"]}
    )
    assert state["status"] == "completed", state
    assert "helper" in node(state, "last")["depends_on"], state
    assert node(state, "helper")["output"]["result"] == "Helped.", state
    told = [body["messages"][-1]["content"] for body in lab.endpoint.bodies("Delegate it")[1:]]
    assert "exactly one of command, code and prompt" in told[0] and "steps wait for each other" in told[1], told
    assert "last <- agent" in lab.endpoint.bodies("Delegate it")[0]["messages"][1]["content"]


@case
def an_agent_that_may_not_delegate_has_no_tool_for_it(lab):
    lab.endpoint.script("Keep it", say("I do it."))
    lab.run(agent("Keep it."))
    assert "delegate" not in [tool["function"]["name"] for tool in lab.endpoint.bodies("Keep it")[0]["tools"]]


@case
def an_agent_stops_when_its_run_is_stopped(lab):
    lab.endpoint.script("Think long", DRIP)
    run_id = lab.start(agent("Think long."))
    wait_until(lambda: lab.endpoint.requests["Think long"], lambda: "the model was not asked")
    assert lab.api("POST", f"/runtime/{run_id}/stop")[0] < 300
    assert lab.ended(run_id)["reason"] == "stopped"
    assert lab.endpoint.hung_up["Think long"].wait(30), "the agent still waits for the model"


@case
def an_agent_stops_when_the_server_hangs_up(lab):
    lab.endpoint.script("Never mind", DRIP)
    body = json.dumps({"run_id": "hang-up", "agent_id": "a", "prompt": "Never mind."})
    connection = http.client.HTTPConnection(lab.service.url.removeprefix("http://"))
    connection.request("POST", "/invoke", body, {"Content-Type": "application/json"})
    wait_until(lambda: lab.endpoint.requests["Never mind"], lambda: "the model was not asked")
    connection.close()
    assert lab.endpoint.hung_up["Never mind"].wait(30), "the agent still waits for the model"


@case
def a_cleanup_cancels_what_is_under_way_and_can_be_repeated(lab):
    lab.endpoint.script("Wait for me", DRIP)
    answers = []
    invocation = {"run_id": "by-hand", "agent_id": "a", "prompt": "Wait for me."}
    waits = background(lambda: answers.append(lab.ask_service("POST", "/invoke", invocation)))
    wait_until(lambda: lab.endpoint.requests["Wait for me"], lambda: "the model was not asked")
    for cancelled in (1, 0):
        cleaned = {"status": "cleaned", "run_id": "by-hand", "cancelled": cancelled}
        assert lab.ask_service("DELETE", "/runtime/by-hand/cleanup") == (200, cleaned)
    waits.join(30)
    assert answers[0][0] == 200 and answers[0][1]["error"] == "the run is over", answers


@case
def agents_that_skip_their_tools_wait_for_a_person_unless_they_say_why(lab):
    lab.endpoint.script("Guess", say("42, I guess."))
    lab.endpoint.script("Skip it", say("[BYPASS: nothing to compute] It is 42."))
    lab.endpoint.script("Compute", tool("execute_python", {"code": "6 * 7"}), say("It is 42."))
    guesses = [{"id": name, "prompt": "Guess."} for name in ("analyze_data", "coder_data")]
    fine = [{"id": "analyze_skips", "prompt": "Skip it."}, {"id": "coder_computes", "prompt": "Compute."}]
    run_id = lab.start(*guesses, *fine, soft_failures=True)
    done = {"waiting_agents": ["analyze_data", "coder_data"], "completed_agents": ["analyze_skips", "coder_computes"]}
    wait_until(lambda: {name: sorted(lab.state(run_id)[name]) for name in done} == done, lambda: str(lab.state(run_id)))
    assert lab.state(run_id)["status"] == "awaitingapproval", lab.state(run_id)
    assert lab.api("POST", f"/runtime/{run_id}/stop")[0] < 300
    lab.ended(run_id)


@case
def a_plan_is_corrected_checked_and_can_be_started(lab):
    def step(name, *before, **work):
        return {"id": name, "depends_on": list(before)} | (work or {"command": "true"})

    circle, stray = [step("a", "b"), step("b", "a")], [step("a", "nobody")]
    good = [step("count", command="seq 3"), step("tell", "count", prompt="Tell it.")]
    plans = [tool("submit_plan", {"name": "numbers", "nodes": nodes}) for nodes in (circle, stray, good)]
    lab.endpoint.script("count to three", say("Gladly!"), *plans)
    lab.endpoint.script("Tell it", say("One, two, three."))
    status, plan = lab.api("POST", "/plan", {"text": "count to three"})
    assert status == 200 and [node["id"] for node in plan["nodes"]] == ["count", "tell"], plan
    told = [body["messages"][-1]["content"] for body in lab.endpoint.bodies("count to three")[1:]]
    for text, words in zip(told, ["Call the tool submit_plan", "wait for each other", "don't exist: nobody"], strict=True):
        assert words in text, told
    state = lab.run(*plan["nodes"], name=plan["name"])
    assert node(state, "tell")["output"]["result"] == "One, two, three.", state


@case
def a_plan_that_fails_says_why(lab):
    lab.endpoint.script("plan nothing", tool("submit_plan", {"name": "x", "nodes": []}))
    status, refused = lab.api("POST", "/plan", {"text": "plan nothing"})
    assert status == 502 and "nothing valid in 4 answers" in refused["message"], refused
    lab.endpoint.script("plan badly", refuse(429, "no more money"))
    status, refused = lab.api("POST", "/plan", {"text": "plan badly"})
    assert status == 502 and "429" in refused["message"] and "no more money" in refused["message"], refused
    assert lab.ask_service("POST", "/plan", {"text": ""})[0] == 422


@case
def a_rule_in_words_becomes_a_rule_of_a_workflow(lab):
    rule = {"id": "no-tables", "trigger_event": "AgentCompleted", "condition": "DROP TABLE",
            "action": {"type": "Interrupt", "reason": "we keep our tables"}}
    lab.endpoint.script("never drop a table", tool("submit_rule", rule))
    assert lab.ask_service("POST", "/compile-pattern", {"text": "never drop a table"}) == (200, rule)
    lab.endpoint.script("Be destructive", say("I did DROP TABLE users."))
    assert lab.run(agent("Be destructive."), rules=[rule])["reason"] == "interrupted"


@case
def many_agents_are_invoked_at_once_and_the_service_describes_itself(lab):
    lab.endpoint.script("Answer both", say("Yes."))
    invocations = [{"run_id": "batch", "agent_id": name, "prompt": "Answer both."} for name in ("a", "b")]
    status, replies = lab.ask_service("POST", "/invoke/batch", invocations)
    assert status == 200 and [(reply["agent_id"], reply["success"]) for reply in replies] == [("a", True), ("b", True)], replies
    assert lab.ask_service("GET", "/models/available") == (200, {"models": [{"id": NAME}]})
    assert lab.ask_service("GET", "/health") == (200, {"status": "ok", "llm_connected": True, "redis_connected": False})
    status, agents = lab.ask_service("GET", "/agents/list")
    assert "execute_python" in agents["agents"][0]["tools"] and "delegate" in agents["agents"][0]["tools"], agents


@case
def an_invocation_over_a_websocket_tells_its_start_and_its_end(lab):
    write = tool("write_file", {"filename": "poem.txt", "content": "roses"})
    lab.endpoint.script("Write over a socket", write, say("Roses."))
    with caller(lab, "socket", "poet") as socket:
        socket.send({"prompt": "Write over a socket.", "input_data": {"before": {"result": "x" * 200}}})
        started, done = socket.messages()
    assert (started["type"], started["agent_id"]) == ("execution_started", "poet") and started["timestamp"], started
    expected = {"type": "execution_complete", "agent_id": "poet", "output": "Roses.", "files_generated": ["poem.txt"],
                "delegation": None, "tokens_used": 20, "timestamp": done["timestamp"]}
    assert done == expected and done["timestamp"] >= started["timestamp"], done
    assert lab.api("GET", "/runtime/socket/files")[1]["files"][0]["filename"] == "poem.txt", "it is not the run of the path"
    assert lab.api("DELETE", "/runtime/socket/cleanup")[0] == 200


@case
def a_delegation_over_a_websocket_is_in_the_answer(lab):
    wanted = {"reason": "two hands are better", "new_nodes": [{"id": "make", "command": "true"}]}
    lab.endpoint.script("Delegate over a socket", tool("delegate", wanted), say("Others do it."))
    asked = {"run_id": "socket", "agent_id": "boss", "prompt": "Delegate over a socket.", "allow_delegation": True}
    with caller(lab, "socket", "boss") as socket:
        socket.send(json.dumps(asked).encode(), BINARY)
        _, done = socket.messages()
    assert (done["type"], done["output"], done["tokens_used"]) == ("execution_complete", "Others do it.", 20), done
    assert (done["delegation"]["reason"], done["delegation"]["strategy"]) == ("two hands are better", "child"), done
    [step] = done["delegation"]["new_nodes"]
    assert (step["id"], step["command"]) == ("make", "true") and "prompt" not in step, step


@case
def what_goes_wrong_over_a_websocket_is_an_error(lab):
    lab.endpoint.script("Break over a socket", tool("list_files", {}), refuse(500, "the GPUs are on fire"))
    with caller(lab, "socket", "a") as socket:
        socket.send({"prompt": "Break over a socket."})
        started, failed = socket.messages()
    assert started["type"] == "execution_started" and failed["type"] == "execution_error", failed
    assert "the GPUs are on fire" in failed["error"] and (failed["agent_id"], failed["tokens_used"]) == ("a", 10), failed
    wrong = {"no JSON": "the message is no JSON", "[]": "an invocation is a JSON object", "": "the message is no JSON",
             '{"run_id": "other", "agent_id": "b"}': "run_id and agent_id must be what the path says",
             '{"prompt": 3}': "prompt: Input should be a valid string"}
    for message, reason in wrong.items():
        with caller(lab, "socket", "a") as socket:
            socket.send(message)
            [refused] = socket.messages()
        assert refused["type"] == "execution_error" and reason in refused["error"], refused
    # A page of another site can open WebSockets, and must not use the model.
    for origin in ("https://evil.example", "null"):
        try:
            caller(lab, "socket", "a", origin)
        except Refused as refused:
            assert refused.args == (403,), refused
        else:
            raise AssertionError(f"a page of {origin} is let in")
    with caller(lab, "socket", "a", lab.service.url) as socket:
        socket.send("[]")
        assert socket.message()["type"] == "execution_error"


@case
def an_agent_over_a_websocket_stops_with_its_caller_and_with_its_run(lab):
    lab.endpoint.script("Think over a socket", DRIP)
    with caller(lab, "socket", "a") as socket:
        socket.send({"prompt": "Think over a socket."})
        assert socket.message()["type"] == "execution_started"
        wait_until(lambda: lab.endpoint.requests["Think over a socket"], lambda: "the model was not asked")
    assert lab.endpoint.hung_up["Think over a socket"].wait(30), "the agent still waits for the model"
    lab.endpoint.script("Wait over a socket", DRIP)
    with caller(lab, "socket-2", "a") as socket:
        socket.send({"prompt": "Wait over a socket."})
        wait_until(lambda: lab.endpoint.requests["Wait over a socket"], lambda: "the model was not asked")
        assert lab.ask_service("DELETE", "/runtime/socket-2/cleanup")[1]["cancelled"] == 1
        ended = socket.messages()[-1]
    assert (ended["type"], ended["error"]) == ("execution_error", "the run is over"), ended


@case
def the_health_says_whether_redis_answers(lab):
    def is_connected():
        status, health = lab.ask_service("GET", "/health")
        assert status == 200 and health["llm_connected"], health
        return health["redis_connected"]

    url = lab.service.redis_url
    assert not is_connected(), "nothing listens"
    with Redis(url) as redis:
        assert is_connected(), url
    with Redis(url, password="another"):
        assert not is_connected(), "the password is wrong"
    with create_server(("127.0.0.1", redis.port)):
        assert not is_connected(), "what listens does not answer"
    with Redis(url):
        assert is_connected(), "it is not looked at again"


def caller(lab, run_id, agent_id, origin=None):
    return WebSocket(f"{lab.service.url}/ws/execute/{run_id}/{agent_id}", origin)


def background(work):
    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    return thread
