//! A text that must not end up in a log.

use std::fmt;

use serde::{Deserialize, Serialize};

/// A password, token or key. Its `Debug` form hides the text; only serialization shows it.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Secret(pub String);

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(…)")
    }
}

#[cfg(test)]
mod tests {
    use super::Secret;

    #[test]
    fn debug_output_hides_the_text() {
        assert_eq!(format!("{:?}", Some(Secret("hunter2".to_owned()))), "Some(Secret(…))");
    }
}
