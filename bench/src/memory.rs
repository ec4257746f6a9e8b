//! Measures saved memory through the official Python SDK, beside a create from a template.

use std::path::Path;

use anyhow::Context;
use isopod_testkit::StateDir;
use serde_json::{Value, json};

use crate::report::{Bound, Report, Table};
use crate::runc_memory::{self, RuncMemory};
use crate::samples::{Samples, millis, times};
use crate::scale::Scale;
use crate::sdk::{Results, samples};
use crate::server::{drive, make_venv, scripts, start_ours};
use crate::stage::abandon_if_held;

const PACKAGES: [&str; 2] = ["e2b-code-interpreter==2.11.5", "e2b==2.63.0"];
/// Seconds until a paused sandbox goes to disk.
const SAVED_AFTER: &str = "1";
/// Megabytes of a sandbox whose memory is on disk.
const MAX_PAUSED: f64 = 1.0;
const REFERENCE: &str = "create from a template";

pub(crate) async fn measure(binary: &Path, scale: &Scale, report: &mut Report) -> anyhow::Result<()> {
    let criu = std::env::var_os("ISOPOD_CRIU").context("ISOPOD_CRIU is not set; run `cargo xtask setup`")?;
    let venv = tempfile::Builder::new().prefix("isopod-bench-venv-").tempdir()?;
    let python = make_venv(venv.path(), &PACKAGES)?;
    let mut results = run(binary, &python, scale, &["--prepare", "code-interpreter-v1"], false)?;
    results.extend(run(binary, &python, scale, &["--prepare", "none", "--pack-memory-after", "1"], true)?);
    let program = std::fs::read_to_string(scripts().join("holder.py"))?;
    let runc = runc_memory::measure(Path::new(&criu), &program, 32, scale.sdk_calls / 10);
    report.add(&table(&results, &runc, scale.saved)?);
    Ok(())
}

fn run(binary: &Path, python: &Path, scale: &Scale, options: &[&str], packed: bool) -> anyhow::Result<Results> {
    let state = StateDir::new(binary).with_shared_templates();
    let results = {
        let server = start_ours(binary, &state, &[options, &["--save-paused-after", SAVED_AFTER]].concat())?;
        let calls = scale.sdk_calls / 5;
        let orders = json!({ "calls": calls, "paused": scale.saved, "packed": packed, "state": state.path() });
        drive(python, "memory.py", &orders, &server.address)?
    };
    abandon_if_held(state);
    Ok(results)
}

fn table(results: &Results, runc: &anyhow::Result<RuncMemory>, paused: usize) -> anyhow::Result<Table> {
    let title = format!("Saved memory through the Python SDK ({})", PACKAGES[1]);
    let mut table = Table::new(&title, &["measure, ms", "n", "p50", "p99", "÷ create", "target of p50"]);
    let reference = samples(results, REFERENCE);
    let rows = [
        (REFERENCE, None),
        ("snapshot, 32 MB", None),
        ("the source stands still, 32 MB", Some(100.0)),
        ("of which for CRIU, 32 MB", Some(40.0)),
        ("create from a snapshot, 32 MB", None),
        ("resume from disk, 32 MB", Some(130.0)),
        ("resume from disk, 300 MB", Some(400.0)),
        ("resume from compressed memory, 32 MB", None),
        ("resume from compressed memory, 300 MB", None),
        ("numpy kernel: fork(1) → first run_code in each", Some(200.0)),
        ("numpy kernel: fork(20) → first run_code in each", Some(1500.0)),
    ];
    for (name, bound) in rows {
        let found = samples(results, name);
        anyhow::ensure!(found.len() > 0, "{name} was not measured");
        let verdict = bound.map(|bound| Bound::AtMost(bound).verdict(found.median().as_secs_f64() * 1e3));
        table.row(&row(name, &found, &reference, verdict.unwrap_or_default()));
    }
    match runc {
        Ok(runc) => {
            table.row(&row("peer: runc checkpoint, 32 MB", &runc.checkpoint, &reference, String::new()));
            table.row(&row("peer: runc restore, 32 MB", &runc.restore, &reference, String::new()));
            let ours = |name| samples(results, name).median();
            table.note(&format!(
                "- runc ÷ ours: checkpoint ÷ snapshot {}, restore ÷ create from a snapshot {}. runc saves the program and its \
                 /tmp, with the same CRIU; ours also copy the files, and answer over HTTP.",
                times(runc.checkpoint.median(), ours("snapshot, 32 MB")),
                times(runc.restore.median(), ours("create from a snapshot, 32 MB")),
            ));
        }
        Err(reason) => table.note(&format!("- runc checkpoint: not available ({reason:#})")),
    }
    let number = |name: &str| results.get(name).and_then(Value::as_f64).context(name.to_owned());
    table.note(&format!(
        "- Memory of a sandbox with 32 MB of its own: {:.1} MB while it runs, {:.1} MB once it is paused and on disk \
         (mean of {paused}, page cache not counted; target {}).",
        number("running")?,
        number("paused")?,
        Bound::AtMost(MAX_PAUSED).verdict(number("paused")?),
    ));
    Ok(table)
}

fn row(name: &str, found: &Samples, reference: &Samples, verdict: String) -> [String; 6] {
    [
        name.to_owned(),
        found.len().to_string(),
        millis(found.median()),
        millis(found.percentile(99)),
        times(found.median(), reference.median()),
        verdict,
    ]
}
