#!/usr/bin/env python3
"""The parts of the framework suite that need neither a server nor a framework."""

import json
import sys
import tempfile
import unittest
import urllib.error
import urllib.request
from pathlib import Path

sys.path[:0] = [str(Path(__file__).resolve().parent), str(Path(__file__).resolve().parents[1] / "sdk")]

from harness import report  # noqa: E402

from runner import page, wire  # noqa: E402
from runner.attempt import PROOF, Outcome, needs_env  # noqa: E402
from runner.frameworks import FRAMEWORKS, HERE  # noqa: E402
from runner.model import ScriptedModel  # noqa: E402
from runner.program import snippets  # noqa: E402

SCRIPT = [{"tool": "shell", "arguments": {"command": "id"}}, {"say": "It printed: {result}"}]
TOOL = {"type": "function", "function": {"name": "shell"}}


def ask(model, path, body):
    request = urllib.request.Request(model.address + path, json.dumps(body).encode(), {"Content-Type": "application/json"})
    with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(request, timeout=10) as answer:
        return answer.read().decode()


class Programs(unittest.TestCase):
    def test_every_framework_has_one_program(self):
        own = {one.name for one in FRAMEWORKS if list(one.directory.glob("app.*"))}
        self.assertEqual(own | set(snippets()), {one.name for one in FRAMEWORKS})
        self.assertEqual(own & set(snippets()), set())

    def test_every_directory_is_a_framework(self):
        directories = {path.parent.name for path in HERE.glob("*/requirements.txt")}
        directories |= {path.parent.name for path in HERE.glob("*/package-lock.json")}
        self.assertEqual(directories, {one.name for one in FRAMEWORKS})

    def test_all_versions_are_exact(self):
        for file in HERE.glob("*/requirements.txt"):
            for line in filter(None, file.read_text().splitlines()):
                self.assertRegex(line, r"^[\w.\[\],-]+==\S+", file)

    def test_three_run_with_every_change(self):
        self.assertEqual(len([one for one in FRAMEWORKS if one.every_change]), 3)


class Proof(unittest.TestCase):
    def test_what_a_sandbox_prints_is_proof(self):
        self.assertEqual(PROOF.findall("It printed: sandbox i1a2b3c4d5e6 42\n"), ["i1a2b3c4d5e6"])

    def test_no_script_and_no_program_is_proof_by_itself(self):
        texts = [file.read_text() for file in HERE.glob("*/*") if file.name.startswith(("script", "app"))]
        texts += [file.read_text() for file in HERE.glob("*/files/**/*") if file.is_file()]
        for text in [*texts, *snippets().values()]:
            self.assertIsNone(PROOF.search(text))

    def test_old_sdks_need_names(self):
        by_name = {one.name: one for one in FRAMEWORKS}
        self.assertTrue(needs_env(by_name["camel"], {"e2b-code-interpreter": "1.5.2", "e2b": "1.11.1"}))
        self.assertTrue(needs_env(by_name["crewai"], {"e2b-code-interpreter": "2.6.2", "e2b": "2.20.3"}))
        self.assertFalse(needs_env(by_name["smolagents"], {"e2b-code-interpreter": "2.11.5", "e2b": "2.63.0"}))
        self.assertFalse(needs_env(by_name["mastra"], {"e2b": "2.51.0"}))


class Page(unittest.TestCase):
    def test_a_run_replaces_its_own_section_only(self):
        framework = FRAMEWORKS[0]
        found = {name: "1.2.3" for name in (*framework.packages, *framework.sdk)}
        row = page.Row(framework, found, Outcome("works"), Outcome("fails", "did not end\nand more"))
        with tempfile.TemporaryDirectory() as place:
            file = Path(place) / "page.md"
            file.write_text("# Title\n")
            page.write([row], "isopod 1", file)
            page.write([row], "isopod 2", file)
            text = file.read_text()
            self.assertTrue(text.startswith("# Title\n\n" + page.BEGIN))
            self.assertEqual((text.count(page.BEGIN), text.count("isopod 1"), text.count("isopod 2")), (1, 0, 1))
            self.assertIn("| smolagents | `smolagents` 1.2.3 |", text)
            self.assertIn("- smolagents with variables: did not end\n", text)
            # The SDK suite writes the rest of the page, and keeps this section.
            self.assertEqual("# Title\n" + report.other_sections(file), text)


class Model(unittest.TestCase):
    def test_a_tool_that_is_not_offered_is_refused(self):
        with ScriptedModel(SCRIPT) as model, self.assertRaises(urllib.error.HTTPError) as refused:
            ask(model, "/v1/chat/completions", {"messages": [], "tools": []})
        self.assertEqual(refused.exception.code, 400)
        refused.exception.close()
        self.assertIn("shell", model.refusals[0])

    def test_a_result_that_the_script_does_not_expect_is_refused(self):
        model = ScriptedModel([SCRIPT[0] | {"expect": "root"}, SCRIPT[1]])
        with self.assertRaisesRegex(ValueError, "did not return 'root' but 'nobody'"):
            model.next_turn(wire.Conversation(["nobody"]), {"shell"})
        self.assertEqual(model.next_turn(wire.Conversation(["root"]), {"shell"}).text, "It printed: root")
        model.server.server_close()

    def test_a_result_can_be_an_argument_of_a_later_call(self):
        kill = {"tool": "kill", "arguments": {"pid": "{taken}", "signal": "{number}"}}
        model = ScriptedModel([SCRIPT[0] | {"take": r"pid (\d+)"}, kill, SCRIPT[1]])
        with self.assertRaisesRegex(ValueError, "did not return"):
            model.next_turn(wire.Conversation(["no number"]), {"kill"})
        turn = model.next_turn(wire.Conversation(["pid 12"]), {"kill"})
        self.assertEqual(json.loads(turn.arguments), {"pid": "12", "signal": 12})
        model.server.server_close()

    def test_a_chat_calls_the_tool_and_repeats_its_result(self):
        question = {"role": "user", "content": "Who am I?"}
        with ScriptedModel(SCRIPT) as model:
            body = {"messages": [question], "tools": [TOOL]}
            first = json.loads(ask(model, "/v1/chat/completions", body))["choices"][0]
            self.assertEqual(first["finish_reason"], "tool_calls")
            self.assertEqual(json.loads(first["message"]["tool_calls"][0]["function"]["arguments"]), {"command": "id"})
            result = {"role": "tool", "tool_call_id": "call_0", "content": [{"type": "text", "text": "root"}]}
            body["messages"] += [first["message"], result]
            second = json.loads(ask(model, "/v1/chat/completions", body))["choices"][0]
            self.assertEqual(second["message"]["content"], "It printed: root")
            streamed = ask(model, "/v1/chat/completions", body | {"stream": True})
            self.assertIn("It printed: root", streamed)
            self.assertTrue(streamed.endswith("data: [DONE]\n\n"))

    def test_responses_do_the_same(self):
        with ScriptedModel(SCRIPT) as model:
            body = {"input": [{"role": "user", "content": "Who am I?"}], "tools": [{"type": "function", "name": "shell"}]}
            call = json.loads(ask(model, "/v1/responses", body))["output"][0]
            self.assertEqual((call["type"], call["name"]), ("function_call", "shell"))
            body["input"] += [call, {"type": "function_call_output", "call_id": call["call_id"], "output": "root"}]
            message = json.loads(ask(model, "/v1/responses", body))["output"][0]
            self.assertEqual(message["content"][0]["text"], "It printed: root")

    def test_gemini_does_the_same(self):
        contents = [{"role": "user", "parts": [{"text": "Who am I?"}]}]
        conversation = wire.Gemini.conversation({"contents": contents})
        self.assertEqual(conversation.results, [])
        call = wire.Gemini.whole(wire.Turn(tool="shell", arguments='{"command": "id"}'))["candidates"][0]["content"]
        answer = {"role": "user", "parts": [{"functionResponse": {"name": "shell", "response": {"stdout": "root"}}}]}
        conversation = wire.Gemini.conversation({"contents": [*contents, call, answer]})
        self.assertEqual(conversation.results, ['{"stdout": "root"}'])


if __name__ == "__main__":
    unittest.main()
