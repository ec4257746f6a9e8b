//! What the node has made ahead, in Prometheus' text format.

use std::fmt::Write as _;

use isopod_wire::node::PoolStatus;

use super::prometheus::head;

/// Appends the pool of each template and the slots that are left.
pub fn render_stock(out: &mut String, stock: &PoolStatus) {
    // Writing to a string cannot fail.
    let _ = write_stock(out, stock);
}

fn write_stock(out: &mut String, stock: &PoolStatus) -> std::fmt::Result {
    head(out, "isopod_pool_sandboxes", "gauge", "Sandboxes made ahead, by template and how far they are.")?;
    for shelf in &stock.templates {
        for (stage, count) in [("ready", shelf.ready), ("prepared", shelf.prepared)] {
            let template = label(&shelf.template);
            writeln!(out, "isopod_pool_sandboxes{{template=\"{template}\",stage=\"{stage}\"}} {count}")?;
        }
    }
    head(out, "isopod_pool_size", "gauge", "How many of them there should be.")?;
    for shelf in &stock.templates {
        for (stage, count) in [("ready", shelf.wanted_ready), ("prepared", shelf.wanted_prepared)] {
            let template = label(&shelf.template);
            writeln!(out, "isopod_pool_size{{template=\"{template}\",stage=\"{stage}\"}} {count}")?;
        }
    }
    if let Some(free) = stock.free_slots {
        head(out, "isopod_node_free_slots", "gauge", "Sandboxes that this host has numbers for besides those it has.")?;
        writeln!(out, "isopod_node_free_slots {free}")?;
    }
    Ok(())
}

/// Names of templates have no such characters today; the format must not break when one has.
fn label(text: &str) -> String {
    text.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}

#[cfg(test)]
mod tests {
    use isopod_wire::node::TemplatePoolStatus;

    use super::*;

    #[test]
    fn shelves_are_told_by_template_and_stage() {
        let shelf = TemplatePoolStatus {
            template: "a\"b".to_owned(),
            ready: 1,
            prepared: 2,
            wanted_ready: 3,
            wanted_prepared: 4,
        };
        let mut text = String::new();
        render_stock(&mut text, &PoolStatus { templates: vec![shelf], free_slots: Some(7) });
        assert!(text.contains(r#"isopod_pool_sandboxes{template="a\"b",stage="prepared"} 2"#), "{text}");
        assert!(text.contains(r#"isopod_pool_size{template="a\"b",stage="ready"} 3"#), "{text}");
        assert!(text.ends_with("isopod_node_free_slots 7\n"), "{text}");
        let mut nothing = String::new();
        render_stock(&mut nothing, &PoolStatus::default());
        assert!(!nothing.contains("free_slots"), "a node that knows no limit tells none");
    }
}
