//! Content types of files, by their extension or else by their first bytes.

use std::path::Path;

/// The content type that browsers expect.
pub(crate) fn content_type(path: &Path, beginning: &[u8]) -> &'static str {
    let extension = path.extension().and_then(|e| e.to_str()).unwrap_or_default().to_ascii_lowercase();
    match extension.as_str() {
        "html" | "htm" => "text/html; charset=utf-8",
        "css" => "text/css; charset=utf-8",
        "js" | "mjs" => "text/javascript; charset=utf-8",
        "json" => "application/json",
        "xml" => "text/xml; charset=utf-8",
        "txt" | "log" | "md" | "csv" => "text/plain; charset=utf-8",
        "png" => "image/png",
        "jpg" | "jpeg" => "image/jpeg",
        "gif" => "image/gif",
        "svg" => "image/svg+xml",
        "webp" => "image/webp",
        "pdf" => "application/pdf",
        "wasm" => "application/wasm",
        "zip" => "application/zip",
        "gz" => "application/gzip",
        "mp4" => "video/mp4",
        "mp3" => "audio/mpeg",
        _ => guess(beginning),
    }
}

fn guess(beginning: &[u8]) -> &'static str {
    // The sample may end in the middle of a character.
    let is_text = match std::str::from_utf8(beginning) {
        Ok(_) => true,
        Err(error) => error.error_len().is_none(),
    };
    let is_plain = is_text && !beginning.iter().any(|b| matches!(b, 0..=8 | 11 | 14..=26 | 28..=31));
    if is_plain { "text/plain; charset=utf-8" } else { "application/octet-stream" }
}

/// `inline; filename=…`, quoted or encoded where the name needs it.
pub(crate) fn content_disposition(name: &str) -> String {
    let is_token = |b: u8| b.is_ascii_alphanumeric() || b"!#$&+-.^_`|~".contains(&b);
    if !name.is_empty() && name.bytes().all(is_token) {
        return format!("inline; filename={name}");
    }
    if name.bytes().all(|b| (32..127).contains(&b)) {
        return format!("inline; filename=\"{}\"", name.replace('\\', "\\\\").replace('"', "\\\""));
    }
    let encoded =
        name.bytes().map(|b| if is_token(b) && b != b'%' { (b as char).to_string() } else { format!("%{b:02X}") });
    format!("inline; filename*=utf-8''{}", encoded.collect::<String>())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_quoted_as_needed() {
        assert_eq!(content_disposition("a.txt"), "inline; filename=a.txt");
        assert_eq!(content_disposition("a \"b\".txt"), "inline; filename=\"a \\\"b\\\".txt\"");
        assert_eq!(content_disposition("é\n"), "inline; filename*=utf-8''%C3%A9%0A");
    }

    #[test]
    fn unknown_names_are_guessed_from_the_beginning() {
        assert_eq!(content_type(Path::new("x"), "caf\u{e9}".as_bytes()), "text/plain; charset=utf-8");
        assert_eq!(content_type(Path::new("x"), &[0xff, 0xfe, 0]), "application/octet-stream");
        assert_eq!(content_type(Path::new("x.PNG"), b""), "image/png");
    }
}
