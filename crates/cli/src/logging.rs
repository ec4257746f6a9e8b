//! What is said besides the result: log lines on standard error, and traces of the server for a collector, where the
//! environment names one as OpenTelemetry programs are told it.

use std::io::{IsTerminal as _, Write};
use std::time::Duration;

use anyhow::{Context as _, bail};
use http::{HeaderMap, HeaderName, HeaderValue};
use isopod_otlp::{OtlpConfig, OtlpExporter, OtlpLayer, otlp};
use tracing::level_filters::LevelFilter;
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::util::SubscriberInitExt as _;
use tracing_subscriber::{Layer as _, filter::Targets};

use crate::args::{Args, Command, LogFormat};
use crate::env_names;
use crate::failure::Hint;
use crate::printable::{printable, printable_json};
use crate::progress_bar;

const SERVICE_NAME: &str = "isopod";
const TRACES_PATH: &str = "/v1/traces";
/// As OpenTelemetry's own programs wait.
const TIMEOUT: Duration = Duration::from_secs(10);
/// Whose spans are sent.
const OURS: [&str; 8] = [
    "isopod_agents",
    "isopod_control",
    "isopod_disk",
    "isopod_network",
    "isopod_node",
    "isopod_server",
    "isopod_service",
    "isopod",
];

/// Begins to log. What is returned must be run where traces are wanted.
pub(crate) fn init(args: &Args) -> anyhow::Result<Option<OtlpExporter>> {
    let is_server = matches!(args.command, Command::Serve(_));
    let is_daemon = is_server || matches!(args.command, Command::Storaged(_));
    let default = if is_daemon { LevelFilter::INFO } else { LevelFilter::ERROR };
    let filter = choose_targets(read(env_names::LOG).as_deref(), default);
    let is_terminal = std::io::stderr().is_terminal();
    let format = LineFormat::choose(args.log_format, is_terminal);
    let lines = tracing_subscriber::fmt::layer().with_writer(move || SafeError { format }).with_target(false);
    let lines = match format {
        LineFormat::Text { has_colours } => lines.with_ansi(has_colours).boxed(),
        // With the fields beside the message, as log collectors want them.
        LineFormat::Json => lines.with_ansi(false).json().flatten_event(true).with_span_list(false).boxed(),
    };
    let lines = lines.with_filter(filter);
    let (layer, exporter) = match is_server.then(|| traces(read)).transpose()?.flatten() {
        Some((layer, exporter)) => (Some(layer), Some(exporter)),
        None => (None, None),
    };
    let ours = Targets::new().with_targets(OURS.map(|name| (name, LevelFilter::INFO)));
    tracing_subscriber::registry().with(lines).with(layer.map(|layer| layer.with_filter(ours))).init();
    Ok(exporter)
}

/// Levels, of all crates (`debug`) or of some (`isopod_node=debug,isopod_network=trace`). `EnvFilter` could also select spans by
/// their fields, but takes eight seconds longer to compile: it brings an engine for regular expressions.
fn choose_targets(asked: Option<&str>, default: LevelFilter) -> Targets {
    let parsed = asked.and_then(|text| text.parse().ok());
    parsed.unwrap_or_else(|| Targets::new().with_default(default))
}

/// How lines are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum LineFormat {
    Text { has_colours: bool },
    Json,
}

impl LineFormat {
    fn choose(asked: LogFormat, is_terminal: bool) -> Self {
        match asked {
            LogFormat::Json => Self::Json,
            LogFormat::Auto if !is_terminal => Self::Json,
            LogFormat::Auto | LogFormat::Text => Self::Text { has_colours: is_terminal },
        }
    }
}

/// Standard error, where the words of a log line cannot steer the terminal, nor look like another line. Lines hold what
/// sandboxes and stores said.
#[derive(Debug)]
struct SafeError {
    format: LineFormat,
}

impl Write for SafeError {
    /// Each call brings one line of the log, whatever is in it.
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        let line = match (String::from_utf8_lossy(bytes), self.format) {
            (line, LineFormat::Text { has_colours }) => safe_line(&line, has_colours),
            (line, LineFormat::Json) => printable_json(&line),
        };
        progress_bar::erase();
        std::io::stderr().write_all(line.as_bytes())?;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        std::io::stderr().flush()
    }
}

/// The same line without anything that a terminal would act on, but the colours that log lines have.
fn safe_line(text: &str, has_colours: bool) -> String {
    let (words, end) = text.strip_suffix('\n').map_or((text, ""), |words| (words, "\n"));
    let mut parts = words.split('\u{1b}');
    let mut safe = printable(parts.next().unwrap_or_default());
    for part in parts {
        let colour = COLOURS.iter().find(|colour| has_colours && part.starts_with(**colour));
        match colour {
            Some(colour) => safe.extend(["\u{1b}", colour]),
            None => safe.push_str(&printable("\u{1b}")),
        }
        safe.push_str(&printable(&part[colour.map_or(0, |colour| colour.len())..]));
    }
    safe + end
}

/// Back to normal, bold, dim, slanted, and the colours of levels. None of them hides anything.
const COLOURS: [&str; 9] = ["[0m", "[1m", "[2m", "[3m", "[31m", "[32m", "[33m", "[34m", "[35m"];

fn read(name: &str) -> Option<String> {
    std::env::var(name).ok().filter(|value| !value.trim().is_empty())
}

fn traces(read: impl Fn(&str) -> Option<String>) -> anyhow::Result<Option<(OtlpLayer, OtlpExporter)>> {
    config(read)?.map(|config| otlp(config).context("could not use the address for traces")).transpose()
}

fn config(read: impl Fn(&str) -> Option<String>) -> anyhow::Result<Option<OtlpConfig>> {
    if read(env_names::OTEL_SDK_DISABLED).is_some_and(|value| value.eq_ignore_ascii_case("true")) {
        return Ok(None);
    }
    let whole = read(env_names::OTLP_TRACES_ENDPOINT);
    let base = read(env_names::OTLP_ENDPOINT).map(|base| format!("{}{TRACES_PATH}", base.trim_end_matches('/')));
    let Some(url) = whole.or(base) else { return Ok(None) };
    if read(env_names::OTLP_PROTOCOL).is_some_and(|protocol| protocol.trim() == "grpc") {
        return Err(Hint::new(
            format!("{} asks for grpc, and traces are sent over HTTP only", env_names::OTLP_PROTOCOL),
            "use http/json and the collector's HTTP port, which is 4318 in most",
        ));
    }
    let service_name = read(env_names::OTEL_SERVICE_NAME).unwrap_or_else(|| SERVICE_NAME.to_owned());
    let attributes = pairs(env_names::OTEL_RESOURCE_ATTRIBUTES, read(env_names::OTEL_RESOURCE_ATTRIBUTES))?;
    let mut headers = HeaderMap::new();
    for (name, value) in pairs(env_names::OTLP_HEADERS, read(env_names::OTLP_HEADERS))? {
        let bad = || format!("{} has a header that cannot be sent: {name:?}", env_names::OTLP_HEADERS);
        let mut value = HeaderValue::try_from(value).with_context(bad)?;
        value.set_sensitive(true);
        headers.insert(HeaderName::try_from(&name).with_context(bad)?, value);
    }
    Ok(Some(OtlpConfig { url, headers, service_name, attributes, timeout: TIMEOUT }))
}

/// `name=value,name=value`, the values percent-encoded where they must be.
fn pairs(variable: &str, text: Option<String>) -> anyhow::Result<Vec<(String, String)>> {
    let text = text.unwrap_or_default();
    let mut pairs = Vec::new();
    for pair in text.split(',').map(str::trim).filter(|pair| !pair.is_empty()) {
        let Some((name, value)) = pair.split_once('=') else { bail!("{variable} must be name=value,name=value") };
        let value = percent_encoding::percent_decode_str(value.trim()).decode_utf8();
        let value = value.with_context(|| format!("{variable} has a value that is no text"))?;
        pairs.push((name.trim().to_owned(), value.into_owned()));
    }
    Ok(pairs)
}

#[cfg(test)]
mod tests {
    use tracing::Level;

    use super::*;

    fn given<'a>(all: &'a [(&'a str, &'a str)]) -> impl Fn(&str) -> Option<String> + 'a {
        move |name| all.iter().find(|(key, _)| *key == name).map(|(_, value)| (*value).to_owned())
    }

    #[test]
    fn words_in_a_log_line_neither_steer_the_terminal_nor_begin_another_line() {
        let hostile = "store said \u{1b}[2J\u{1b}]0;owned\u{7}\u{1b}[8m\u{202e}\u{9b}2J\r\nERROR forged\n";
        let safe = r"store said \u{1b}[2J\u{1b}]0;owned\u{7}\u{1b}[8m\u{202e}\u{9b}2J\r\nERROR forged";
        for has_colours in [false, true] {
            assert_eq!(safe_line(hostile, has_colours), format!("{safe}\n"));
        }
        let coloured = "\u{1b}[2m12:00\u{1b}[0m \u{1b}[33m WARN\u{1b}[0m \u{1b}[3merror\u{1b}[0m\u{1b}[2m=\u{1b}[0mx\n";
        assert_eq!(safe_line(coloured, true), coloured);
        assert!(!safe_line(coloured, false).contains('\u{1b}'), "a file has none");
    }

    #[test]
    fn levels_are_of_all_crates_or_of_those_that_are_named() {
        let would_log =
            |asked, target: &str, level| choose_targets(asked, LevelFilter::INFO).would_enable(target, &level);
        assert!(would_log(Some("debug"), "isopod_node", Level::DEBUG));
        assert!(!would_log(Some("debug"), "isopod_node", Level::TRACE));
        let some = Some("isopod_node=debug,isopod_network=trace");
        assert!(would_log(some, "isopod_node::pool", Level::DEBUG));
        assert!(would_log(some, "isopod_network", Level::TRACE));
        assert!(!would_log(some, "isopod_node", Level::TRACE));
        assert!(!would_log(some, "isopod_control", Level::ERROR));
        for wrong in [None, Some("isopod_node=loud"), Some("[span{field=1}]=debug")] {
            assert!(would_log(wrong, "isopod_node", Level::INFO), "{wrong:?}");
            assert!(!would_log(wrong, "isopod_node", Level::DEBUG), "{wrong:?}");
        }
        assert!(would_log(Some("info,isopod_node=off"), "isopod_control", Level::INFO));
        assert!(!would_log(Some("info,isopod_node=off"), "isopod_node", Level::ERROR));
    }

    #[test]
    fn json_is_for_whoever_asks_and_for_files_on_request() {
        let text = |has_colours| LineFormat::Text { has_colours };
        for (asked, on_a_terminal, elsewhere) in [
            (LogFormat::Text, text(true), text(false)),
            (LogFormat::Json, LineFormat::Json, LineFormat::Json),
            (LogFormat::Auto, text(true), LineFormat::Json),
        ] {
            assert_eq!(LineFormat::choose(asked, true), on_a_terminal);
            assert_eq!(LineFormat::choose(asked, false), elsewhere);
        }
    }

    /// What the formatter itself lets through is more than a terminal may get.
    #[test]
    fn every_kind_of_field_is_made_safe() {
        #[derive(Clone, Default)]
        struct Kept(std::sync::Arc<std::sync::Mutex<String>>);
        impl Write for Kept {
            fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
                self.0.lock().unwrap().push_str(&safe_line(&String::from_utf8_lossy(bytes), false));
                Ok(bytes.len())
            }
            fn flush(&mut self) -> std::io::Result<()> {
                Ok(())
            }
        }
        let kept = Kept::default();
        let writer = kept.clone();
        let lines = tracing_subscriber::fmt::layer().with_writer(move || writer.clone()).with_ansi(false);
        let words = "a\u{1b}[2J\nforged\u{202e}";
        tracing::subscriber::with_default(tracing_subscriber::registry().with(lines), || {
            let error = std::io::Error::other(words);
            tracing::warn!(shown = %words, debugged = ?words, plain = words, "{words}");
            tracing::warn!(error = &error as &dyn std::error::Error, "it failed");
            tracing::warn_span!("within", of = %words).in_scope(|| tracing::warn!("done"));
        });
        let text = kept.0.lock().unwrap().clone();
        assert_eq!(text.lines().count(), 3, "{text}");
        assert!(
            !text.contains(['\u{1b}', '\u{202e}']) && !text.lines().any(|line| line.starts_with("forged")),
            "{text}"
        );
    }

    #[test]
    fn the_usual_variables_say_where_traces_go() {
        assert!(config(given(&[])).unwrap().is_none());
        let base = ("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:4318/");
        let found = config(given(&[base, ("OTEL_EXPORTER_OTLP_HEADERS", "x-key=a%20b, other=c")])).unwrap().unwrap();
        assert_eq!((found.url.as_str(), found.service_name.as_str()), ("http://127.0.0.1:4318/v1/traces", "isopod"));
        assert_eq!((found.headers["x-key"].as_bytes(), found.headers["other"].as_bytes()), (&b"a b"[..], &b"c"[..]));
        let whole = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "http://127.0.0.1:9/t");
        assert_eq!(config(given(&[base, whole])).unwrap().unwrap().url, "http://127.0.0.1:9/t");
        assert!(config(given(&[base, ("OTEL_SDK_DISABLED", "true")])).unwrap().is_none());
    }

    #[test]
    fn what_cannot_be_done_is_refused() {
        let base = ("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:4318");
        for bad in [
            ("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc"),
            ("OTEL_EXPORTER_OTLP_HEADERS", "nonsense"),
            ("OTEL_EXPORTER_OTLP_HEADERS", "a b=c"),
        ] {
            assert!(config(given(&[base, bad])).is_err(), "{bad:?}");
        }
        assert!(traces(given(&[("OTEL_EXPORTER_OTLP_ENDPOINT", "127.0.0.1:4317")])).is_err());
    }
}
