//! Measures tool calls of a run through REST, compared with a new sandbox for each call and all files sent again.

use std::path::Path;

use isopod_testkit::StateDir;
use serde_json::json;

use crate::report::{Bound, Report, Table};
use crate::samples::{millis, times};
use crate::scale::Scale;
use crate::sdk::{Results, samples};
use crate::server::{drive, make_venv, start_ours};
use crate::stage::abandon_if_held;

const TEMPLATE: &str = "code-interpreter-v1";
const PACKAGES: [&str; 1] = ["e2b-code-interpreter==2.11.5"];
const FILES: usize = 1000;

const SECOND: &str = "second and later calls, 1+1, ms";
const UNCHANGED: &str = "files unchanged, whole call, ms";
const PEER_CALL: &str = "peer: new sandbox for each call, 1+1, ms";
const PEER_FILES: &str = "peer: new sandbox, all files sent, ms";

/// The rows, and the targets of their medians.
const ROWS: [(&str, Option<f64>); 9] = [
    ("first call of a run, ms", None),
    (SECOND, Some(6.0)),
    ("all files new, sync, ms", None),
    ("files unchanged, sync, ms", Some(30.0)),
    (UNCHANGED, None),
    ("one file changed, sync, ms", Some(40.0)),
    ("one file changed, whole call, ms", None),
    (PEER_CALL, None),
    (PEER_FILES, None),
];

pub(crate) async fn measure(binary: &Path, scale: &Scale, report: &mut Report) -> anyhow::Result<()> {
    let venv = tempfile::Builder::new().prefix("isopod-bench-venv-").tempdir()?;
    let python = make_venv(venv.path(), &PACKAGES)?;
    let state = StateDir::new(binary).with_shared_templates();
    let results = {
        let server = start_ours(binary, &state, &["--prepare", TEMPLATE, "--pool-ready", "4"])?;
        let orders = json!({ "calls": scale.sdk_calls, "files": FILES });
        drive(&python, "runs.py", &orders, &server.address)?
    };
    abandon_if_held(state);
    report.add(&table(&results)?);
    Ok(())
}

fn table(results: &Results) -> anyhow::Result<Table> {
    let columns = ["measure", "n", "p50", "p99", "target"];
    let mut table = Table::new(&format!("Tool calls of a run through REST, {FILES} files"), &columns);
    for (name, bound) in ROWS {
        let found = samples(results, name);
        anyhow::ensure!(found.len() > 0, "{name} was not measured");
        let verdict = bound.map(|bound| Bound::AtMost(bound).verdict(found.median().as_secs_f64() * 1e3));
        table.row(&[
            name.to_owned(),
            found.len().to_string(),
            millis(found.median()),
            millis(found.percentile(99)),
            verdict.unwrap_or_default(),
        ]);
    }
    for (what, peer, own) in [("1+1", PEER_CALL, SECOND), ("with files", PEER_FILES, UNCHANGED)] {
        let (peer, own) = (samples(results, peer).median(), samples(results, own).median());
        table.note(&format!("- {what}: new sandbox for each call ÷ session: {}", times(peer, own)));
    }
    Ok(table)
}
