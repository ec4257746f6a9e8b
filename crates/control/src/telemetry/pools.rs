//! The node's pools in Prometheus' text format.

use std::fmt::Write as _;

use isopod_wire::node::PoolStatus;

use super::prometheus::head;

/// Appends the pool of each template and the number of free slots.
pub fn render_pools(out: &mut String, pools: &PoolStatus) {
    // Writing to a string cannot fail.
    let _ = write_pools(out, pools);
}

fn write_pools(out: &mut String, pools: &PoolStatus) -> std::fmt::Result {
    head(out, "isopod_pool_sandboxes", "gauge", "Pooled sandboxes, by template and stage.")?;
    for pool in &pools.templates {
        for (stage, count) in [("ready", pool.ready), ("prepared", pool.prepared)] {
            let template = label(&pool.template);
            writeln!(out, "isopod_pool_sandboxes{{template=\"{template}\",stage=\"{stage}\"}} {count}")?;
        }
    }
    head(out, "isopod_pool_size", "gauge", "Target number of pooled sandboxes, by template and stage.")?;
    for pool in &pools.templates {
        for (stage, count) in [("ready", pool.wanted_ready), ("prepared", pool.wanted_prepared)] {
            let template = label(&pool.template);
            writeln!(out, "isopod_pool_size{{template=\"{template}\",stage=\"{stage}\"}} {count}")?;
        }
    }
    if let Some(free) = pools.free_slots {
        head(out, "isopod_node_free_slots", "gauge", "Free sandbox slots on this host.")?;
        writeln!(out, "isopod_node_free_slots {free}")?;
    }
    Ok(())
}

/// Escapes a label value. Template names need no escaping today, but the format must not break if one does.
fn label(text: &str) -> String {
    text.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}

#[cfg(test)]
mod tests {
    use isopod_wire::node::TemplatePoolStatus;

    use super::*;

    #[test]
    fn shelves_are_told_by_template_and_stage() {
        let pool = TemplatePoolStatus {
            template: "a\"b".to_owned(),
            ready: 1,
            prepared: 2,
            wanted_ready: 3,
            wanted_prepared: 4,
        };
        let mut text = String::new();
        render_pools(&mut text, &PoolStatus { templates: vec![pool], free_slots: Some(7) });
        assert!(text.contains(r#"isopod_pool_sandboxes{template="a\"b",stage="prepared"} 2"#), "{text}");
        assert!(text.contains(r#"isopod_pool_size{template="a\"b",stage="ready"} 3"#), "{text}");
        assert!(text.ends_with("isopod_node_free_slots 7\n"), "{text}");
        let mut nothing = String::new();
        render_pools(&mut nothing, &PoolStatus::default());
        assert!(!nothing.contains("free_slots"), "a node that knows no limit tells none");
    }
}
