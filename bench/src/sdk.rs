//! Measures the server through the official Python SDK, beside the same calls against a server with canned responses.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use isopod_testkit::StateDir;
use serde_json::{Value, json};

use crate::report::{Bound, Report, Table};
use crate::samples::{Samples, millis, times};
use crate::scale::Scale;
use crate::server::{Server, drive, make_venv, scripts, start, start_ours};
use crate::stage::abandon_if_held;

const SDK: &str = "e2b==2.63.0";

/// The targets of a row in milliseconds: p50 and p99.
const BOUNDS: [(&str, Option<f64>, Option<f64>); 6] = [
    ("create", Some(10.0), None),
    ("create → first command", Some(15.0), Some(40.0)),
    ("warm commands.run", Some(4.0), None),
    ("burst of 100 creates", Some(1500.0), None),
    ("list of one page of 100", None, None),
    ("list of all", Some(20.0), None),
];

pub(crate) async fn measure(binary: &Path, scale: &Scale, report: &mut Report) -> anyhow::Result<()> {
    let venv = tempfile::Builder::new().prefix("isopod-bench-venv-").tempdir()?;
    let python = make_venv(venv.path(), &[SDK])?;
    let state = StateDir::new(binary);
    let (ours, floor) = {
        let server = start_ours(binary, &state, &["--prepare", "none"])?;
        let canned = start_floor(&python)?;
        let ours = measure_calls(&python, &server.address, scale, true)?;
        (ours, measure_calls(&python, &canned.address, scale, false)?)
    };
    abandon_if_held(state);
    report.add(&calls_table(&ours, &floor));
    report.add(&proxy_table(&ours, scale)?);
    Ok(())
}

fn start_floor(python: &Path) -> anyhow::Result<Server> {
    let mut command = Command::new(python);
    command.arg(scripts().join("floor.py"));
    start(command, |line| line.trim().parse::<u16>().ok().map(|port| format!("127.0.0.1:{port}")))
}

pub(crate) type Results = BTreeMap<String, Value>;

fn measure_calls(python: &Path, address: &str, scale: &Scale, real: bool) -> anyhow::Result<Results> {
    let orders = json!({
        "calls": scale.sdk_calls, "bursts": 3, "crowd": scale.crowd, "real": real, "address": address,
        "mib": scale.stream_mib,
    });
    drive(python, "sdk.py", &orders, address)
}

pub(crate) fn samples(results: &Results, name: &str) -> Samples {
    let values = results.get(name).and_then(Value::as_array).into_iter().flatten();
    values.filter_map(Value::as_f64).map(|millis| Duration::from_secs_f64(millis / 1e3)).collect()
}

fn calls_table(ours: &Results, floor: &Results) -> Table {
    let columns = ["call", "n", "p50 ms", "p99 ms", "floor p50 ms", "ours ÷ floor", "target"];
    let mut table = Table::new(&format!("Through the Python SDK ({SDK}) on loopback"), &columns);
    for (name, median, tail) in BOUNDS {
        let (own, least) = (samples(ours, name), samples(floor, name));
        let verdict = |what, bound: Option<f64>, value: Duration| {
            bound.map(|bound| format!("{what} {}", Bound::AtMost(bound).verdict(value.as_secs_f64() * 1e3)))
        };
        let verdicts = [verdict("p50", median, own.median()), verdict("p99", tail, own.percentile(99))];
        table.row(&[
            name.to_owned(),
            own.len().to_string(),
            millis(own.median()),
            millis(own.percentile(99)),
            millis(least.median()),
            times(own.median(), least.median()),
            verdicts.into_iter().flatten().collect::<Vec<_>>().join(", "),
        ]);
    }
    let listed = ours.get("listed").and_then(Value::as_u64).unwrap_or(0);
    table.note(&format!(
        "\"All\" were {listed} sandboxes, in pages of 100. The floor is the same SDK against canned answers."
    ));
    for name in ["burst failures", "list errors"] {
        let errors = ours.get(name).and_then(Value::as_array).map_or(&[][..], Vec::as_slice);
        let first = errors.first().and_then(Value::as_str).unwrap_or("none");
        table.note(&format!("- {name}: {} ({first})", errors.len()));
    }
    table
}

fn proxy_table(ours: &Results, scale: &Scale) -> anyhow::Result<Table> {
    let of = |kind: &str, way: &str| samples(ours, &format!("{kind}, {way}")).median().as_secs_f64() * 1e3;
    let (direct, proxied) = (of("small request", "direct"), of("small request", "proxied"));
    let (fast, through) = (of("large body", "direct"), of("large body", "proxied"));
    anyhow::ensure!(through > 0.0 && direct > 0.0, "the proxy was not measured");
    let rate = |millis: f64| (scale.stream_mib << 20) as f64 / 1e3 / millis;
    let mut table = Table::new("Proxy to a user's port", &["measure", "direct", "proxied", "difference", "target"]);
    let (overhead, share) = (proxied - direct, fast / through * 100.0);
    table.row(&[
        "small request, p50 ms".to_owned(),
        format!("{direct:.3}"),
        format!("{proxied:.3}"),
        format!("{overhead:.3} ms"),
        Bound::AtMost(0.3).verdict(overhead),
    ]);
    table.row(&[
        "throughput, MB/s".to_owned(),
        format!("{:.0}", rate(fast)),
        format!("{:.0}", rate(through)),
        format!("{share:.0} %"),
        Bound::AtLeast(80.0).verdict(share.round()),
    ]);
    table.note("Direct is the same small server outside of any sandbox, on loopback.");
    Ok(table)
}
