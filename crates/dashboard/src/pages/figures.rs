//! The server's metrics, parsed from the text format of Prometheus.

/// All samples of an answer.
#[derive(Debug, Default)]
pub(super) struct Figures(Vec<Sample>);

#[derive(Debug)]
struct Sample {
    name: String,
    labels: Vec<(String, String)>,
    value: f64,
}

impl Figures {
    /// Lines that are not understood are left out.
    pub(super) fn parse(text: &str) -> Self {
        Self(text.lines().filter(|line| !line.starts_with('#')).filter_map(sample_of).collect())
    }

    /// The sum of all samples with these labels. Zero if there are none.
    pub(super) fn sum_of(&self, name: &str, labels: &[(&str, &str)]) -> f64 {
        let has = |sample: &Sample, (name, value): &(&str, &str)| {
            sample.labels.iter().any(|label| label.0 == *name && label.1 == *value)
        };
        let found = self.0.iter().filter(|sample| sample.name == name);
        found.filter(|sample| labels.iter().all(|label| has(sample, label))).map(|sample| sample.value).sum()
    }

    /// The values of a label, each once.
    pub(super) fn labels_of(&self, name: &str, label: &str) -> Vec<String> {
        let found = self.0.iter().filter(|sample| sample.name == name).flat_map(|sample| &sample.labels);
        let mut values: Vec<String> =
            found.filter(|(known, _)| known == label).map(|(_, value)| value.clone()).collect();
        values.sort();
        values.dedup();
        values
    }
}

fn sample_of(line: &str) -> Option<Sample> {
    let (head, value) = line.rsplit_once(' ')?;
    let (name, labels) = match head.split_once('{') {
        Some((name, labels)) => (name, labels_of(labels.strip_suffix('}')?)?),
        None => (head, Vec::new()),
    };
    Some(Sample { name: name.to_owned(), labels, value: value.parse().ok()? })
}

/// `a="x",b="y"`, with `\"`, `\\` and `\n` in values.
fn labels_of(text: &str) -> Option<Vec<(String, String)>> {
    let mut labels = Vec::new();
    let mut rest = text;
    while !rest.is_empty() {
        let (name, after) = rest.split_once("=\"")?;
        let mut value = String::new();
        let mut characters = after.char_indices();
        let end = loop {
            match characters.next()? {
                (at, '"') => break at,
                (_, '\\') => value.push(match characters.next()?.1 {
                    'n' => '\n',
                    other => other,
                }),
                (_, other) => value.push(other),
            }
        };
        labels.push((name.to_owned(), value));
        rest = after.get(end + 1..)?.trim_start_matches(',');
    }
    Some(labels)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn samples_are_found_by_name_and_labels() {
        let text = "# HELP a b\na{state=\"running\",x=\"q\\\"{,}\\n\"} 2\na{state=\"paused\"} 3\nb 1.5\nnonsense\na{ 1\nc{x=\"1} 2\n";
        let figures = Figures::parse(text);
        assert_eq!(figures.sum_of("a", &[]), 5.0);
        assert_eq!(figures.sum_of("a", &[("state", "running"), ("x", "q\"{,}\n")]), 2.0);
        assert_eq!(figures.sum_of("b", &[]), 1.5);
        assert_eq!(figures.sum_of("missing", &[]), 0.0);
        assert_eq!(figures.labels_of("a", "state"), ["paused", "running"]);
    }
}
