//! Pipes a stream into a process with one call, so that latency counts only once.

use std::io;

use bytes::Bytes;
use futures::{Stream, StreamExt, stream};
use isopod_wire::rpc::MessageField;
use isopod_wire::rpc::process::process_input::Input;
use isopod_wire::rpc::process::stream_input_request::{DataEvent, Event, StartEvent};
use isopod_wire::rpc::process::{ProcessInput, StreamInputRequest, StreamInputResponse};

use super::{GuestError, ProcessHandle};

impl ProcessHandle {
    /// Writes the stream to the process's standard input, as fast as the process reads it. The input stays open until
    /// [`Self::close_stdin`].
    ///
    /// # Errors
    /// Like [`Self::send_stdin`]; [`TransportError::Source`](crate::TransportError::Source) if the stream fails.
    pub async fn stream_stdin(
        &self,
        pieces: impl Stream<Item = io::Result<Bytes>> + Send + 'static,
    ) -> Result<(), GuestError> {
        let start = StartEvent { process: MessageField::some(self.selector()) };
        let start = StreamInputRequest { event: Some(Event::Start(start)) };
        let messages = stream::once(async { Ok(start) }).chain(pieces.map(|piece| piece.map(data)));
        let guest = self.guest();
        let _: StreamInputResponse =
            guest.caller.client_stream("/process.Process/StreamInput", guest.options(), messages).await?;
        Ok(())
    }
}

fn data(piece: Bytes) -> StreamInputRequest {
    let input = ProcessInput { input: Some(Input::Stdin(piece)) };
    StreamInputRequest { event: Some(Event::Data(DataEvent { input: MessageField::some(input) })) }
}
