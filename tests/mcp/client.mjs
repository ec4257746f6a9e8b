// Cases with the official TypeScript SDK as the client. Prints a line of JSON for each case.

import assert from "node:assert/strict";
import { createInterface } from "node:readline";
import { Client } from "@modelcontextprotocol/sdk/client/index.js";
import { StdioClientTransport } from "@modelcontextprotocol/sdk/client/stdio.js";
import { StreamableHTTPClientTransport } from "@modelcontextprotocol/sdk/client/streamableHttp.js";
import { LoggingMessageNotificationSchema } from "@modelcontextprotocol/sdk/types.js";

const OVER_HTTP = process.argv[2] === "http";
const { ISOPOD_PROGRAM, ISOPOD_ONLY, E2B_API_KEY, E2B_API_URL, E2B_SANDBOX_URL } = process.env;
const [NAME, ...ONLY] = JSON.parse(ISOPOD_ONLY);
const input = createInterface({ input: process.stdin })[Symbol.asyncIterator]();

/** Options of the program are parts of the URL. */
function transportOf(options) {
  if (OVER_HTTP) {
    const url = new URL("/mcp", E2B_API_URL);
    for (let at = 0; at < options.length; at += 2) url.searchParams.set(options[at].slice(2), options[at + 1]);
    return new StreamableHTTPClientTransport(url, { requestInit: { headers: { "X-API-Key": E2B_API_KEY } } });
  }
  const env = { PATH: process.env.PATH, E2B_API_KEY, E2B_API_URL, E2B_SANDBOX_URL };
  return new StdioClientTransport({ command: ISOPOD_PROGRAM, args: ["mcp", ...options], env });
}

async function connected(options, work) {
  const client = new Client({ name: "test", version: "1" });
  const logs = [];
  client.setNotificationHandler(LoggingMessageNotificationSchema, ({ params }) => void logs.push(params));
  const transport = transportOf(options);
  await client.connect(transport);
  // With their schemas, results are checked by the client.
  await client.listTools();
  const call = (name, args = {}, options) => client.callTool({ name, arguments: args }, undefined, options);
  const good = async (name, args, options) => {
    const result = await call(name, args, options);
    assert.ok(!result.isError, JSON.stringify(result.content));
    return result.structuredContent;
  };
  try {
    return await work({ client, call, good, logs });
  } finally {
    if (OVER_HTTP) await transport.terminateSession();
    await client.close();
  }
}

async function sandboxes() {
  const answer = await fetch(`${E2B_API_URL}/v2/sandboxes`, { headers: { "X-API-Key": E2B_API_KEY } });
  return (await answer.json()).map((one) => one.sandboxID);
}

const CASES = {
  async every_tool_once() {
    await connected([], async ({ client, call, good }) => {
      const { tools } = await client.listTools();
      assert.equal(tools.length, 17);
      await good("write_file", { path: "a.txt", content: "one\n" });
      await good("edit_file", { path: "a.txt", old_text: "one", new_text: "two" });
      assert.equal((await good("read_file", { path: "a.txt" })).text, "two\n");
      assert.ok((await good("list_files")).entries.some((entry) => entry.path === "/home/user/a.txt"));
      assert.equal((await good("run_command", { command: "cat a.txt" })).stdout, "two\n");
      assert.match((await good("preview_url", { port: 80 })).url, /^http:\/\/80-/);
      const { sandbox } = await good("create_sandbox");
      assert.equal((await good("list_sandboxes")).sandboxes.length, 2);
      assert.equal((await good("pause_sandbox", { sandbox })).paused, true);
      assert.equal((await good("resume_sandbox", { sandbox })).sandbox, sandbox);
      assert.equal(typeof (await call("fork_sandbox", { sandbox })).content[0].text, "string");
      assert.equal((await good("kill_sandbox", { sandbox })).killed, true);
      const run = await good("start_workflow", { workflow: "nodes:\n  - id: one\n    command: 'true'\n" });
      assert.equal((await good("get_workflow", { run_id: run.run_id })).status, "completed");
      const bad = await call("upload", { local_path: "/etc/passwd", path: "/tmp/x" });
      assert.ok(bad.isError && bad.content[0].text.includes("Hint: "));
      assert.ok((await call("download", { path: "a.txt", local_path: "/tmp/x" })).isError);
    });
    assert.deepEqual(await sandboxes(), []);
  },

  async state_stays_and_pictures_are_pictures() {
    await connected([], async ({ call, good }) => {
      await good("run_code", { code: "x = 41" });
      assert.equal((await good("run_code", { code: "x + 1" })).results[0].text, "42");
      const { content } = await call("run_code", { code: "import matplotlib.pyplot as plt\nplt.plot([1, 2])\nplt.show()" });
      const picture = content.find((block) => block.type === "image");
      assert.ok(Buffer.from(picture.data, "base64").subarray(1, 4).equals(Buffer.from("PNG")));
    });
  },

  async progress_logs_and_cancel() {
    await connected([], async ({ good, call, logs }) => {
      const abort = new AbortController();
      const told = [];
      const onprogress = ({ message }) => {
        told.push(message);
        abort.abort();
      };
      const command = "echo started; sleep 98765";
      await assert.rejects(call("run_command", { command }, { onprogress, signal: abort.signal }));
      assert.deepEqual(told, ["started"]);
      while ((await good("run_command", { command: "pgrep -fc '^sleep 9876[5]'" })).stdout !== "0\n");
      assert.ok(logs.some(({ logger, data }) => logger === "stdout" && data === "started"), JSON.stringify(logs));
    });
  },

  async a_named_session_outlasts_the_client() {
    const session = `mcp-js-${process.pid}`;
    const first = await connected([], ({ good }) => good("run_code", { code: "kept = 7", session }));
    assert.deepEqual(await sandboxes(), [first.sandbox]);
    await connected(["--session", session], async ({ good }) => {
      assert.equal((await good("run_code", { code: "kept" })).results[0].text, "7");
      await good("kill_sandbox");
    });
    assert.deepEqual(await sandboxes(), []);
  },

  async a_restart_of_the_server_is_survived() {
    await connected([], async ({ good }) => {
      await good("run_code", { code: "x = 5" });
      console.log("restart");
      assert.equal((await input.next()).value, "restarted");
      assert.equal((await good("run_code", { code: "x" })).results[0].text, "5");
    });
  },

  async a_call_during_a_restart_ends_with_an_error() {
    if (!OVER_HTTP) return;
    await connected([], async ({ good, call }) => {
      await good("run_code", { code: "x = 6" });
      let begin;
      const started = new Promise((resolve) => (begin = resolve));
      const running = call("run_command", { command: "echo started; sleep 98765" }, { onprogress: begin });
      await Promise.race([started, running]);
      console.log("restart");
      const [restarted, ended] = await Promise.all([input.next(), running.catch((error) => error)]);
      assert.equal(restarted.value, "restarted");
      assert.match(ended.message, /the server restarted while this call ran/);
      assert.equal((await good("run_code", { code: "x" })).results[0].text, "6");
    });
  },

  async bad_arguments_and_hostile_output() {
    await connected([], async ({ client, call }) => {
      await assert.rejects(call("no_such_tool"), { code: -32602 });
      const bad = await call("run_command", { comand: "true" });
      assert.ok(bad.isError && bad.content[0].text.includes("comand"), JSON.stringify(bad));
      const hostile = await call("run_command", { command: String.raw`printf '\033[2J\377\n'; head -c 10000000 /dev/urandom` });
      assert.ok(!/[\x00-\x08\x0b-\x1f\x7f-\x9f]/.test(hostile.content[0].text));
      assert.ok(hostile.structuredContent.truncated);
      await assert.rejects(client.readResource({ uri: "sandbox://other/logs" }));
    });
  },
};

let failed = false;
for (const [name, work] of Object.entries(CASES)) {
  if (ONLY.length > 0 && !ONLY.some((text) => `${NAME} ${name}`.includes(text))) continue;
  let error = null;
  try {
    await work();
  } catch (caught) {
    error = `${caught.stack}`;
    failed = true;
  }
  console.log(JSON.stringify({ name, error }));
}
process.exit(failed ? 1 : 0);
