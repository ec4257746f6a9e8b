//! Showing what code gave, to a terminal that has only text. Pictures are saved beside the person.
//!
//! Output goes out as it is, colours and all: the person at the terminal ran the code to see it.

use std::io::Write;
use std::path::PathBuf;

use base64::Engine;
use isopod_client::interpreter::{CodeEvent, CodeResult};

/// Pictures that were saved.
#[derive(Debug, Default)]
pub(super) struct Pictures {
    saved: usize,
}

/// Whether the event is a good one.
pub(super) fn show(event: CodeEvent, pictures: &mut Pictures) -> anyhow::Result<bool> {
    let mut out = std::io::stdout();
    match event {
        CodeEvent::Stdout(text) => out.write_all(text.as_bytes())?,
        CodeEvent::Stderr(text) => std::io::stderr().write_all(text.as_bytes())?,
        CodeEvent::Result(result) => show_result(&result, pictures)?,
        CodeEvent::Error(error) => {
            let text =
                if error.traceback.is_empty() { format!("{}: {}", error.name, error.value) } else { error.traceback };
            writeln!(std::io::stderr(), "{}", text.trim_end())?;
            return Ok(false);
        }
        _ => {}
    }
    out.flush()?;
    Ok(true)
}

fn show_result(result: &CodeResult, pictures: &mut Pictures) -> anyhow::Result<()> {
    let text = result.text.as_ref().or(result.markdown.as_ref()).or(result.html.as_ref());
    if let Some(text) = text {
        writeln!(std::io::stdout(), "{}", text.trim_end())?;
    }
    for (ending, data) in [("png", &result.png), ("jpeg", &result.jpeg)] {
        if let Some(data) = data {
            let bytes = base64::engine::general_purpose::STANDARD.decode(data.replace('\n', ""))?;
            let path = pictures.save(ending, &bytes)?;
            say_error!("picture saved as {}", path.display());
        }
    }
    Ok(())
}

impl Pictures {
    /// Under a name that nothing has yet.
    fn save(&mut self, ending: &str, bytes: &[u8]) -> std::io::Result<PathBuf> {
        loop {
            self.saved += 1;
            let path = PathBuf::from(format!("picture-{}.{ending}", self.saved));
            match std::fs::File::create_new(&path) {
                Ok(mut file) => {
                    file.write_all(bytes)?;
                    return Ok(path);
                }
                Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => {}
                Err(error) => return Err(error),
            }
        }
    }
}
