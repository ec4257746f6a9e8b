//! Measures the code interpreter through its official Python SDK, beside `ipykernel`.

use std::path::Path;

use anyhow::Context;
use isopod_testkit::StateDir;
use serde_json::{Value, json};

use crate::report::{Bound, Report, Table};
use crate::samples::{millis, times};
use crate::scale::Scale;
use crate::sdk::{Results, samples};
use crate::server::{drive, make_venv, start_ours};
use crate::stage::abandon_if_held;

const TEMPLATE: &str = "code-interpreter-v1";
const PACKAGES: [&str; 4] = ["e2b-code-interpreter==2.11.5", "ipykernel", "jupyter_client", "numpy"];
/// How many are ready before the burst.
const POOL: &str = "10";
const OUTPUT_MB: usize = 100;

pub(crate) async fn measure(binary: &Path, scale: &Scale, report: &mut Report) -> anyhow::Result<()> {
    let venv = tempfile::Builder::new().prefix("isopod-bench-venv-").tempdir()?;
    let python = make_venv(venv.path(), &PACKAGES)?;
    let state = StateDir::new(binary).with_shared_templates();
    let results = {
        let options = ["--prepare", TEMPLATE, "--pool-ready", POOL, "--pool-prepared", POOL];
        let server = start_ours(binary, &state, &options)?;
        let orders = json!({ "calls": scale.sdk_calls, "burst": 50, "megabytes": OUTPUT_MB });
        drive(&python, "interpreter.py", &orders, &server.address)?
    };
    abandon_if_held(state);
    report.add(&table(&results)?);
    Ok(())
}

fn table(results: &Results) -> anyhow::Result<Table> {
    let columns = ["measure", "n", "p50", "p99", "target"];
    let mut table = Table::new(&format!("Code interpreter through the Python SDK ({})", PACKAGES[0]), &columns);
    let bounds = [
        ("create → first run_code, ms", Some(20.0), Some(60.0)),
        ("create → first run_code, pool empty, ms", None, None),
        ("warm run_code(1+1), ms", Some(4.0), None),
        ("peer: ipykernel, warm 1+1, ms", None, None),
        ("peer: ipykernel, start → first result, ms", None, None),
        ("burst of 50 with numpy, ms", Some(2000.0), None),
    ];
    for (name, median, tail) in bounds {
        let found = samples(results, name);
        anyhow::ensure!(found.len() > 0, "{name} was not measured");
        let verdict = |what, bound: Option<f64>, value: std::time::Duration| {
            bound.map(|bound| format!("{what} {}", Bound::AtMost(bound).verdict(value.as_secs_f64() * 1e3)))
        };
        let verdicts = [verdict("p50", median, found.median()), verdict("p99", tail, found.percentile(99))];
        table.row(&[
            name.to_owned(),
            found.len().to_string(),
            millis(found.median()),
            millis(found.percentile(99)),
            verdicts.into_iter().flatten().collect::<Vec<_>>().join(", "),
        ]);
    }
    let number = |name: &str| results.get(name).and_then(Value::as_f64).context(name.to_owned());
    let plain = [
        ("private memory of an idle interpreter, MB", Some(Bound::AtMost(8.0))),
        ("private memory after its first cell, MB", None),
        ("printed output, MB/s", Some(Bound::AtLeast(50.0))),
    ];
    for (name, bound) in plain {
        let value = number(name)?;
        let verdict = bound.map_or(String::new(), |bound| bound.verdict(value));
        table.row(&[name, "", &format!("{value:.1}"), "", &verdict]);
    }
    let (peer, ours) = (samples(results, "peer: ipykernel, warm 1+1, ms"), samples(results, "warm run_code(1+1), ms"));
    let ratio = peer.median().as_secs_f64() / ours.median().as_secs_f64().max(1e-9);
    table.note(&format!(
        "- ipykernel ÷ ours, warm: {} ({})",
        times(peer.median(), ours.median()),
        Bound::AtLeast(2.0).verdict(ratio)
    ));
    table.note(&format!(
        "- {} MB of output: {} bytes lost; failures in the burst: {}",
        OUTPUT_MB,
        number("lost bytes")?,
        results.get("burst failures").map_or("?".to_owned(), Value::to_string),
    ));
    Ok(table)
}
