//! The `traceparent` header of W3C Trace Context: which trace a request belongs to.

/// A caller's span, the parent of ours.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TraceParent {
    pub(crate) trace: [u8; 16],
    pub(crate) span: [u8; 8],
}

impl TraceParent {
    /// Returns `None` for text that is not well-formed, as the standard requires.
    pub fn parse(text: &str) -> Option<Self> {
        let mut parts = text.split('-');
        let (version, trace, span, flags) = (parts.next()?, parts.next()?, parts.next()?, parts.next()?);
        let version = decode::<1>(version)?[0];
        // Later versions may add parts, but version 0 has exactly four.
        if version == 0xff || (version == 0 && parts.next().is_some()) {
            return None;
        }
        decode::<1>(flags)?;
        let parent = Self { trace: decode(trace)?, span: decode(span)? };
        (parent.trace != [0; 16] && parent.span != [0; 8]).then_some(parent)
    }
}

/// Accepts only lowercase digits, because the standard has no others.
fn decode<const N: usize>(text: &str) -> Option<[u8; N]> {
    let mut bytes = [0; N];
    hex::decode_to_slice(text, &mut bytes).ok()?;
    (!text.contains(|char: char| char.is_ascii_uppercase())).then_some(bytes)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn only_what_the_standard_allows_is_taken() {
        let good = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
        let parent = TraceParent::parse(good).unwrap();
        assert_eq!((parent.trace[0], parent.span[7]), (0x0a, 0x31));
        assert!(TraceParent::parse(&good.replace("00-0a", "01-0a").replace("-01", "-01-more")).is_some());
        for bad in [
            "",
            "00",
            &good.to_uppercase(),
            &good.replace("00-0a", "ff-0a"),
            &format!("{good}-more"),
            &good.replace("b7ad6b7169203331", "0000000000000000"),
            &good.replace("0af7651916cd43dd8448eb211c80319c", &"0".repeat(32)),
            &good[..good.len() - 1],
        ] {
            assert_eq!(TraceParent::parse(bad), None, "{bad:?}");
        }
    }

    proptest! {
        #[test]
        fn no_text_makes_it_panic(text in "\\PC*") {
            TraceParent::parse(&text);
        }
    }
}
