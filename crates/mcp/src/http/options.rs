//! What a client chooses by the query of its URL: `/mcp?session=work&template=base`.

use percent_encoding::percent_decode_str;
use serde::{Deserialize, Serialize};

use super::refusal::Refusal;

/// The largest number of sandboxes that a client may ask for. The team's own limits count as well.
const MAX_SANDBOXES: usize = 100;
const MAX_TEXT: usize = 128;

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Options {
    pub(super) session: Option<String>,
    pub(super) template: Option<String>,
    pub(super) max_sandboxes: Option<usize>,
    #[serde(default)]
    pub(super) all_sandboxes: bool,
}

impl Options {
    pub(super) fn parse(query: &str) -> Result<Self, Refusal> {
        let mut options = Self::default();
        for pair in query.split('&').filter(|pair| !pair.is_empty()) {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            let value = percent_decode_str(&value.replace('+', " ")).decode_utf8_lossy().into_owned();
            let wrong = |what: &str| Refusal::Query(format!("`{name}` is {what}"));
            let text = || match value.len() {
                1..=MAX_TEXT => Ok(Some(value.clone())),
                _ => Err(wrong("empty or too long")),
            };
            match name {
                "session" => options.session = text()?,
                "template" => options.template = text()?,
                "max_sandboxes" => match value.parse() {
                    Ok(number @ 1..=MAX_SANDBOXES) => options.max_sandboxes = Some(number),
                    _ => return Err(wrong("not a number from 1 to 100")),
                },
                "all_sandboxes" => match value.as_str() {
                    "true" => options.all_sandboxes = true,
                    "false" => options.all_sandboxes = false,
                    _ => return Err(wrong("neither true nor false")),
                },
                _ => {
                    let known = "session, template, max_sandboxes and all_sandboxes";
                    return Err(Refusal::Query(format!("it has an unknown name; known are {known}")));
                }
            }
        }
        Ok(options)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_query_chooses_and_wrong_ones_are_refused() {
        assert_eq!(Options::parse("").unwrap(), Options::default());
        let options = Options::parse("session=a%20b+c&template=base&max_sandboxes=2&all_sandboxes=true").unwrap();
        assert_eq!(options.session.as_deref(), Some("a b c"));
        assert_eq!((options.template.as_deref(), options.max_sandboxes), (Some("base"), Some(2)));
        assert!(options.all_sandboxes);
        let long = format!("session={}", "x".repeat(129));
        for wrong in ["session=", "x=1", "max_sandboxes=0", "max_sandboxes=101", "all_sandboxes=yes", "=", &long] {
            assert!(Options::parse(wrong).is_err(), "{wrong}");
        }
    }
}
