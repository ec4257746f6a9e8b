//! The connections to the database, in Prometheus' text format.

use std::fmt::Write as _;

use isopod_store::Connections;

use super::prometheus::head;

/// Appends the number of connections, and how many of them are in use.
pub fn render_database(out: &mut String, connections: Connections) {
    // Writing to a string cannot fail.
    let _ = write_database(out, connections);
}

fn write_database(out: &mut String, connections: Connections) -> std::fmt::Result {
    let Connections { kind, open, busy } = connections;
    head(out, "isopod_database_connections", "gauge", "Connections to the database, by state.")?;
    for (state, count) in [("busy", busy), ("idle", open.saturating_sub(busy))] {
        writeln!(out, "isopod_database_connections{{kind=\"{kind}\",state=\"{state}\"}} {count}")?;
    }
    Ok(())
}
