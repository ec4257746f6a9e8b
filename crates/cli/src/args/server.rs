//! Which server the verbs speak with, in whose name; and small things that several verbs can be told.

use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use crate::env_names;

/// The same settings as the official SDKs have.
#[derive(Debug, clap::Args)]
#[command(next_help_heading = "Server")]
pub(crate) struct ServerArgs {
    /// API key of the team.
    #[arg(long, env = env_names::E2B_API_KEY, hide_env_values = true, value_name = "KEY")]
    pub(crate) api_key: Option<String>,
    /// Base URL of the API [default: https://api.DOMAIN if a domain is set, else http://127.0.0.1:3000].
    #[arg(long, env = env_names::E2B_API_URL, value_name = "URL")]
    pub(crate) api_url: Option<String>,
    /// Base URL of sandboxes [default: the API URL if it is on this machine, else https://{port}-{id}.DOMAIN].
    #[arg(long, env = env_names::E2B_SANDBOX_URL, value_name = "URL")]
    pub(crate) sandbox_url: Option<String>,
    /// Domain of an E2B-compatible service.
    #[arg(long, env = env_names::E2B_DOMAIN, value_name = "DOMAIN")]
    pub(crate) domain: Option<String>,
    /// PEM file with additional CA certificates to trust.
    #[arg(long, env = env_names::CA_FILE, value_name = "FILE")]
    pub(crate) ca_file: Option<PathBuf>,
}

/// `KEY=VALUE`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Pair {
    pub(crate) key: String,
    pub(crate) value: String,
}

impl FromStr for Pair {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.split_once('=') {
            Some((key, value)) if !key.is_empty() => Ok(Self { key: key.to_owned(), value: value.to_owned() }),
            _ => Err(format!("{text:?} is not KEY=VALUE")),
        }
    }
}

/// A positive number of seconds, perhaps with a fraction.
pub(crate) fn parse_seconds(text: &str) -> Result<Duration, String> {
    let bad = || format!("{text:?} is not a positive number of seconds");
    let seconds: f64 = text.parse().map_err(|_| bad())?;
    match Duration::try_from_secs_f64(seconds) {
        Ok(duration) if !duration.is_zero() => Ok(duration),
        _ => Err(bad()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pairs_need_a_key() {
        assert_eq!("a=b=c".parse(), Ok(Pair { key: "a".to_owned(), value: "b=c".to_owned() }));
        assert_eq!("a=".parse(), Ok(Pair { key: "a".to_owned(), value: String::new() }));
        assert!("=b".parse::<Pair>().is_err() && "a".parse::<Pair>().is_err() && "".parse::<Pair>().is_err());
    }

    #[test]
    fn seconds_are_positive() {
        assert_eq!(parse_seconds("1.5"), Ok(Duration::from_millis(1500)));
        for bad in ["", "0", "-1", "nan", "inf", "1e30", "5m"] {
            assert!(parse_seconds(bad).is_err(), "{bad:?} was accepted");
        }
    }
}
