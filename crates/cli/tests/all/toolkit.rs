//! The toolkit with real sandboxes: what the tools do, and what a caller cannot make them do.

use crate::served;

use isopod_client::toolkit::{BlockingToolkit, ToolkitConfig};
use isopod_client::{Client, ClientConfig, Toolkit};
use isopod_testkit::StateDir;
use serde_json::{Value, json};
use served::{BINARY, Served};

const TEMPLATE: &str = "code-interpreter-v1";

struct Rig {
    state: StateDir,
    server: Served,
    client: Client,
}

impl Rig {
    fn start() -> Self {
        let state = StateDir::new(BINARY).with_shared_templates();
        state.isopod().run(&["template", "build", TEMPLATE]).ok();
        let mut command = state.isopod().command(&["serve", "--listen", "127.0.0.1:0", "--pool-ready", "1"]);
        command.args(["--pool-prepared", "1", "--prepare", TEMPLATE]);
        let server = Served::start_command(&state, command);
        let client = Client::new(ClientConfig {
            api_url: server.export("E2B_API_URL").to_owned(),
            api_key: server.export("E2B_API_KEY").to_owned(),
            sandbox_url: Some(server.export("E2B_SANDBOX_URL").to_owned()),
            domain: None,
        });
        Self { client: client.unwrap(), server, state }
    }

    fn finish(self) {
        self.server.run(&["kill", "--all"]).ok();
        self.server.stop();
        self.state.assert_nothing_left();
    }
}

#[tokio::test]
async fn the_tools_work_in_one_sandbox_and_tell_when_it_is_another() {
    let rig = Rig::start();
    let toolkit = Toolkit::new(&rig.client, "test_e2b_001");

    let ran = toolkit.run_python_code("x = 6\nprint('Reading')\nprint('Content')\nx * 7").await.unwrap();
    assert_eq!(ran["stdout"], json!(["Reading", "Content"]), "{ran}");
    assert_eq!((&ran["results"], &ran["error"], &ran["stderr"]), (&json!(["42"]), &Value::Null, &json!([])));
    assert_eq!((&ran["success"], &ran["ok"], &ran["restarted"]), (&json!(true), &json!(true), &json!(false)));
    let wrong = toolkit.run_python_code("print(x)\n1 +").await.unwrap();
    assert_eq!((&wrong["success"], &wrong["ok"]), (&json!(true), &json!(false)), "{wrong}");
    assert!(wrong["error"].as_str().unwrap().starts_with("SyntaxError"), "{wrong}");
    assert_eq!(toolkit.run_python_code("print(x)").await.unwrap()["stdout"], json!(["6"]));

    let command = toolkit.run_command("echo out; echo err >&2; exit 3", 60.0).await.unwrap();
    assert_eq!((&command["exit_code"], &command["success"]), (&json!(3), &json!(false)));
    assert_eq!((&command["stdout"], &command["stderr"]), (&json!("out\n"), &json!("err\n")));
    let slow = toolkit.run_command("sleep 60", 0.5).await.unwrap();
    assert_eq!((&slow["success"], &slow["ok"]), (&json!(false), &json!(false)), "{slow}");

    files(&toolkit).await;
    injections(&toolkit).await;

    let id = command["sandbox_id"].as_str().unwrap();
    rig.client.kill(&id.parse().unwrap()).await.unwrap();
    let again = toolkit.run_python_code("'x' in globals()").await.unwrap();
    assert_eq!((&again["restarted"], &again["old_sandbox_id"]), (&json!(true), &json!(id)), "{again}");
    assert_eq!(again["results"], json!(["False"]));
    assert_eq!(toolkit.run_command("true", 60.0).await.unwrap()["restarted"], false);
    assert!(toolkit.close().await.unwrap());
    rig.finish();
}

/// Bytes stay bytes, both ways.
async fn files(toolkit: &Toolkit) {
    let here = tempfile::tempdir().unwrap();
    let (up, down) = (here.path().join("up.bin"), here.path().join("new/down.bin"));
    let bytes: Vec<u8> = (0..=255).cycle().take(300_000).collect();
    std::fs::write(&up, &bytes).unwrap();
    let sent = toolkit.upload_file(up.to_str().unwrap(), "/home/user/in.bin").await.unwrap();
    assert_eq!((&sent["success"], &sent["size_bytes"]), (&json!(true), &json!(300_000)), "{sent}");
    let got = toolkit.download_file("/home/user/in.bin", down.to_str().unwrap()).await.unwrap();
    assert_eq!((&got["success"], &got["size_bytes"]), (&json!(true), &json!(300_000)), "{got}");
    assert_eq!(std::fs::read(&down).unwrap(), bytes);

    let written = toolkit.write_file_content("/home/user/d/t.txt", "grüße\n").await.unwrap();
    assert_eq!((&written["size_bytes"], &written["message"]), (&json!(8), &json!("Wrote 8 bytes")));
    let read = toolkit.read_file_content("/home/user/d/t.txt").await.unwrap();
    assert_eq!((&read["content"], &read["is_text"], &read["size_bytes"]), (&json!("grüße\n"), &json!(true), &json!(8)));
    let binary = toolkit.read_file_content("/home/user/in.bin").await.unwrap();
    assert_eq!((&binary["content"], &binary["is_text"]), (&json!("[Binary file]"), &json!(false)));
    let missing = toolkit.read_file_content("/nothing").await.unwrap();
    assert_eq!((&missing["success"], &missing["ok"]), (&json!(false), &json!(false)));
    assert!(missing["sandbox_id"].is_string() && missing["error"].is_string(), "{missing}");

    let inline = json!({ "local_path": "x", "remote_path": "/tmp/x", "content_base64": "AP8=" });
    assert_eq!(toolkit.call("upload_file", inline).await.unwrap()["size_bytes"], 2);
    let back = toolkit.call("download_file", json!({ "remote_path": "/tmp/x" })).await.unwrap();
    assert_eq!((&back["content_base64"], &back["size_bytes"]), (&json!("AP8="), &json!(2)));
    let listed = toolkit.list_files("/home/user").await.unwrap();
    assert!(listed["output"].as_str().unwrap().contains("in.bin"), "{listed}");
}

/// What is said to be a path or a package is one, whatever it looks like.
async fn injections(toolkit: &Toolkit) {
    let listed = toolkit.list_files("/tmp; touch /tmp/injected").await.unwrap();
    assert_eq!((&listed["success"], &listed["ok"]), (&json!(false), &json!(false)), "{listed}");
    let odd = "/tmp/$(touch /tmp/injected)/a b;c";
    assert_eq!(toolkit.create_directory(odd).await.unwrap()["ok"], true);
    assert!(toolkit.list_files(odd).await.unwrap()["ok"].as_bool().unwrap());
    let package = toolkit.install_package("x; touch /tmp/injected").await.unwrap();
    assert_eq!((&package["success"], &package["package"]), (&json!(false), &json!("x; touch /tmp/injected")));
    assert!(toolkit.install_package("-r/etc/passwd").await.is_err());
    assert_eq!(toolkit.run_command("test -e /tmp/injected", 60.0).await.unwrap()["exit_code"], 1);
}

/// The same for a program that does not await, with tools left out.
#[test]
fn a_program_that_does_not_await_has_the_same_tools() {
    let rig = Rig::start();
    let toolkit = Toolkit::new(&rig.client, "sync");
    let config = ToolkitConfig { exclude_tools: vec!["run_command".to_owned()], ..ToolkitConfig::default() };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(toolkit.configure(&config)).unwrap();
    drop(runtime);
    let toolkit = BlockingToolkit::new(toolkit).unwrap();
    assert_eq!(toolkit.run_python_code("print('hi')").unwrap()["stdout"], json!(["hi"]));
    assert!(toolkit.call("run_command", json!({ "command": "true" })).is_err());
    let status = toolkit.call("get_sandbox_status", json!({})).unwrap();
    assert_eq!((&status["status"], &status["template"]), (&json!("running"), &json!(TEMPLATE)));
    assert!(toolkit.close().unwrap());
    rig.finish();
}
