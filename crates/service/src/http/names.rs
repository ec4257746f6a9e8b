//! Names that callers choose: agents, tasks, keys of metadata. They are bounded, and plain enough for a log line or a
//! branch name.

use std::collections::BTreeMap;

use isopod_api::ApiError;

const MAX_LENGTH: usize = 128;

/// Accepts 1 to 128 letters, digits and `-_.:@`.
pub(super) fn checked_name(field: &str, name: String) -> Result<String, ApiError> {
    let is_fine = |c: char| c.is_ascii_alphanumeric() || "-_.:@".contains(c);
    if (1..=MAX_LENGTH).contains(&name.len()) && name.chars().all(is_fine) {
        return Ok(name);
    }
    Err(ApiError::bad_request(format!("{field} must be 1 to {MAX_LENGTH} letters, digits and -_.:@")))
}

/// As [`checked_name`], for an optional name.
pub(super) fn checked_option(field: &str, name: Option<String>) -> Result<Option<String>, ApiError> {
    name.map(|name| checked_name(field, name)).transpose()
}

/// Accepts text for people: not empty and not too long.
pub(super) fn checked_text(field: &str, text: String, max: usize) -> Result<String, ApiError> {
    let is_fine = !text.trim().is_empty() && text.chars().count() <= max && !text.contains('\0');
    if is_fine { Ok(text) } else { Err(ApiError::bad_request(format!("{field} must have 1 to {max} characters"))) }
}

pub(super) fn checked_metadata(metadata: BTreeMap<String, String>) -> Result<BTreeMap<String, String>, ApiError> {
    let is_bad = |(key, value): (&String, &String)| {
        key.is_empty() || key.len() > 256 || value.len() > 4096 || key.starts_with("isopod.")
    };
    if metadata.len() > 64 || metadata.iter().any(is_bad) {
        let message = "metadata may have 64 entries of 256 and 4096 bytes; names that start with isopod. are reserved";
        return Err(ApiError::bad_request(message));
    }
    Ok(metadata)
}

pub(super) fn checked_env(env: BTreeMap<String, String>) -> Result<BTreeMap<String, String>, ApiError> {
    let bad = env.iter().find(|(name, value)| name.is_empty() || name.contains(['=', '\0']) || value.contains('\0'));
    match bad {
        Some((name, _)) => Err(ApiError::bad_request(format!("env: {name:?} cannot be set"))),
        None => Ok(env),
    }
}
