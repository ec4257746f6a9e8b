//! Listens to `tracing` and queues a [`FinishedSpan`] for each span that ends. It never blocks: if the queue is full,
//! it drops the span.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::SystemTime;

use tokio::sync::mpsc;
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::layer::Context;
use tracing_subscriber::registry::{LookupSpan, SpanRef};

use crate::parent::TraceParent;
use crate::span::{FinishedSpan, SpanEvent, Value};

/// The field in which a span names the caller's trace that it continues. It has the format of the header of the same
/// name.
const PARENT_FIELD: &str = "traceparent";
/// The field in which a span says who it is, in the same format, because another server was or will be told. Its trace
/// counts if the caller names none.
const OWN_FIELD: &str = "own_traceparent";
/// A span has failed if it contains an error event, or if this field, the response's status, is 500 or more.
const STATUS_FIELD: &str = "http.response.status_code";
/// The most events that are kept for one span.
const MAX_EVENTS: usize = 64;

/// A layer to add to a subscriber.
#[derive(Debug)]
pub struct OtlpLayer {
    queue: mpsc::Sender<FinishedSpan>,
    dropped: Arc<AtomicU64>,
}

impl OtlpLayer {
    pub(crate) fn new(queue: mpsc::Sender<FinishedSpan>, dropped: Arc<AtomicU64>) -> Self {
        Self { queue, dropped }
    }
}

impl<S: Subscriber + for<'span> LookupSpan<'span>> tracing_subscriber::Layer<S> for OtlpLayer {
    fn on_new_span(&self, attributes: &Attributes<'_>, id: &Id, context: Context<'_, S>) {
        let Some(span) = context.span(id) else { return };
        let mut fields = Fields::default();
        attributes.record(&mut fields);
        let from_outside = fields.parent.take();
        let above = span.parent().and_then(|parent| identity(&parent));
        let own = fields.own.take();
        let (trace, parent) = match (from_outside, above) {
            (Some(caller), _) => (caller.trace, Some(caller.span)),
            (None, Some((trace, parent))) => (trace, Some(parent)),
            (None, None) => (own.map_or_else(random, |own| own.trace), None),
        };
        let begun = FinishedSpan {
            trace,
            id: own.map_or_else(random, |own| own.span),
            parent,
            name: attributes.metadata().name(),
            begin: SystemTime::now(),
            end: SystemTime::now(),
            attributes: fields.values,
            events: Vec::new(),
            failed: fields.failed,
            is_root: above.is_none(),
        };
        span.extensions_mut().insert(begun);
    }

    fn on_record(&self, id: &Id, values: &Record<'_>, context: Context<'_, S>) {
        let Some(span) = context.span(id) else { return };
        let mut fields = Fields::default();
        values.record(&mut fields);
        if let Some(begun) = span.extensions_mut().get_mut::<FinishedSpan>() {
            begun.attributes.append(&mut fields.values);
            begun.failed |= fields.failed;
        }
    }

    fn on_event(&self, event: &Event<'_>, context: Context<'_, S>) {
        let Some(span) = context.event_span(event) else { return };
        let mut fields = Fields::default();
        event.record(&mut fields);
        if let Some(begun) = span.extensions_mut().get_mut::<FinishedSpan>()
            && begun.events.len() < MAX_EVENTS
        {
            begun.failed |= *event.metadata().level() == Level::ERROR;
            begun.events.push(SpanEvent { at: SystemTime::now(), message: fields.message, attributes: fields.values });
        }
    }

    fn on_close(&self, id: Id, context: Context<'_, S>) {
        let Some(span) = context.span(&id) else { return };
        let Some(mut ended) = span.extensions_mut().remove::<FinishedSpan>() else { return };
        ended.end = SystemTime::now();
        if self.queue.try_send(ended).is_err() {
            self.dropped.fetch_add(1, Ordering::Relaxed);
        }
    }
}

fn identity<'a, S: LookupSpan<'a>>(span: &SpanRef<'a, S>) -> Option<([u8; 16], [u8; 8])> {
    span.extensions().get::<FinishedSpan>().map(|span| (span.trace, span.id))
}

fn random<const N: usize>() -> [u8; N] {
    let mut bytes = [0; N];
    // Without randomness, ids are not unique, and collectors reject zeros. Spans are not worth an abort, so use a fixed
    // id.
    if getrandom::fill(&mut bytes).is_err() || bytes == [0; N] {
        bytes = [1; N];
    }
    bytes
}

/// The fields of a span or an event.
#[derive(Default)]
struct Fields {
    values: Vec<(&'static str, Value)>,
    message: String,
    parent: Option<TraceParent>,
    own: Option<TraceParent>,
    failed: bool,
}

impl Fields {
    fn put(&mut self, field: &Field, value: Value) {
        match (field.name(), value) {
            ("message", Value::Text(text)) => self.message = text,
            (PARENT_FIELD, Value::Text(text)) => self.parent = TraceParent::parse(&text),
            (OWN_FIELD, Value::Text(text)) => self.own = TraceParent::parse(&text),
            (name, value) => {
                self.failed |= name == STATUS_FIELD && matches!(value, Value::Number(500..));
                self.values.push((name, value));
            }
        }
    }
}

impl Visit for Fields {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.put(field, Value::Text(format!("{value:?}")));
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        self.put(field, Value::Text(value.to_owned()));
    }

    fn record_i64(&mut self, field: &Field, value: i64) {
        self.put(field, Value::Number(value));
    }

    fn record_u64(&mut self, field: &Field, value: u64) {
        self.put(field, i64::try_from(value).map_or_else(|_| Value::Text(value.to_string()), Value::Number));
    }

    fn record_bool(&mut self, field: &Field, value: bool) {
        self.put(field, Value::Flag(value));
    }

    fn record_f64(&mut self, field: &Field, value: f64) {
        self.put(field, Value::Real(value));
    }
}
