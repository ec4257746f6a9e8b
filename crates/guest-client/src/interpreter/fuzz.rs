//! Fuzz targets for the lines of a code interpreter.

use super::event::parse_line;
use super::lines::Lines;
use super::weight::json_weight;

/// The first byte determines the size of the pieces. The rest is a stream of lines.
pub fn interpreter_reply(data: &[u8]) {
    let Some((step, data)) = data.split_first() else { return };
    let mut lines = Lines::up_to(data.len());
    let mut taken = Vec::new();
    for piece in data.chunks(usize::from(*step) + 1) {
        assert!(lines.push(piece), "no line is too long here");
        while let Some(line) = lines.take() {
            assert!(json_weight(&line) >= line.len());
            let _ = parse_line(&line);
            taken.extend_from_slice(&line);
            taken.push(b'\n');
        }
    }
    taken.extend_from_slice(&lines.take_rest());
    assert_eq!(taken, data, "every byte arrives");
}
