//! The sandbox's log, as the host fetches it.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod common;

use common::{Guest, wait_until};
use serde_json::{Value, json};

const HOST: [(&str, &str); 1] = [("X-Isopod-Control", "1")];

fn page(guest: &Guest, after: u64) -> Value {
    let reply = guest.request("GET", &format!("/logs?after={after}"), &HOST, b"");
    assert_eq!(reply.status, 200, "{}", reply.text());
    reply.json()
}

/// The stream and text of every block.
fn printed(page: &Value) -> Vec<(String, String)> {
    let text = |block: &Value, key: &str| block[key].as_str().unwrap().to_owned();
    page["blocks"].as_array().unwrap().iter().map(|block| (text(block, "stream"), text(block, "text"))).collect()
}

#[test]
fn only_the_host_reads_the_log() {
    let guest = Guest::new();
    assert_eq!(guest.get("/logs").status, 404);
    let guest = Guest::bare(&[]);
    guest.init(&json!({"defaultUser": "root", "accessToken": common::TOKEN}));
    let with_token = [("X-Access-Token", common::TOKEN)];
    assert_eq!(guest.request("GET", "/logs", &with_token, b"").status, 404);
    assert_eq!(guest.request("GET", "/logs?after=x", &HOST, b"").status, 400);
    assert_eq!(page(&guest, 0)["blocks"], json!([]));
}

#[test]
fn the_log_has_the_output_of_commands_with_and_without_a_client() {
    let guest = Guest::new();
    let pid = guest.run("echo out; sleep 0.1; echo err >&2; sleep 0.1; printf last").pid;
    let first = page(&guest, 0);
    let expected = [("stdout", "out"), ("stderr", "err"), ("stdout", "last")];
    assert_eq!(printed(&first), expected.map(|(stream, text)| (stream.to_owned(), text.to_owned())));
    assert_eq!(first["blocks"][0]["pid"], pid);
    drop(guest.start("sleep 0.2; echo nobody reads this"));
    let after = first["next"].as_u64().unwrap();
    wait_until(|| printed(&page(&guest, after)) == [("stdout".to_owned(), "nobody reads this".to_owned())]);
}

#[test]
fn the_log_has_what_a_background_child_prints_after_its_parent_has_exited() {
    let guest = Guest::new();
    guest.run("(sleep 0.3; echo late) & echo early");
    wait_until(|| printed(&page(&guest, 0)).iter().any(|(_, text)| text == "late"));
}

#[test]
fn a_flood_is_read_to_its_end_and_the_log_stays_small() {
    let guest = Guest::new();
    let outcome = guest.run("seq 1 2000000; echo end");
    assert!(outcome.text().ends_with("2000000\nend\n"));
    let (mut at, mut bytes, mut skipped, mut last) = (0, 0, 0, String::new());
    loop {
        let page = page(&guest, at);
        at = page["next"].as_u64().unwrap();
        skipped += page["skipped"].as_u64().unwrap();
        for (_, text) in printed(&page) {
            bytes += text.len();
            last = text;
        }
        if page["more"] == false {
            break;
        }
    }
    assert!(last.ends_with("end"), "the newest is kept");
    assert!(skipped > 10 << 20 && bytes <= 1 << 20, "{skipped} {bytes}");
}
