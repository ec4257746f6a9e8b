//! Text that comes in pieces: a character whose bytes are in two of them stays whole.

/// Makes text of the pieces of a stream.
#[derive(Debug, Default)]
pub struct TextDecoder(Vec<u8>);

impl TextDecoder {
    /// The text that these bytes complete.
    pub fn push(&mut self, bytes: &[u8]) -> String {
        self.0.extend_from_slice(bytes);
        let keep = incomplete(&self.0);
        let rest = self.0.split_off(self.0.len() - keep);
        let text = String::from_utf8_lossy(&self.0).into_owned();
        self.0 = rest;
        text
    }

    /// What is left when the stream has ended: half a character, at most.
    pub fn finish(&mut self) -> String {
        String::from_utf8_lossy(&std::mem::take(&mut self.0)).into_owned()
    }
}

/// How many bytes at the end are the beginning of a character.
fn incomplete(bytes: &[u8]) -> usize {
    match std::str::from_utf8(bytes) {
        Ok(_) => 0,
        Err(error) => match (error.error_len(), bytes.len() - error.valid_up_to()) {
            (None, rest) => rest,
            // Something is broken before the end; the end itself is looked at by its last bytes.
            (Some(_), _) => (1..=3.min(bytes.len()))
                .find(|count| {
                    let tail = &bytes[bytes.len() - count..];
                    tail[0] >= 0xc0 && std::str::from_utf8(tail).is_err_and(|error| error.error_len().is_none())
                })
                .unwrap_or(0),
        },
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn text_that_is_cut_anywhere_is_put_together_again(text in ".{0,40}", cut in 0_usize..80) {
            let bytes = text.as_bytes();
            let cut = cut.min(bytes.len());
            let mut decoder = TextDecoder::default();
            let mut whole = decoder.push(&bytes[..cut]);
            whole += &decoder.push(&bytes[cut..]);
            whole += &decoder.finish();
            prop_assert_eq!(whole, text);
        }

        #[test]
        fn any_bytes_can_be_shown(bytes: Vec<u8>) {
            let mut decoder = TextDecoder::default();
            let _ = decoder.push(&bytes);
            prop_assert!(decoder.0.len() <= 3);
        }
    }
}
