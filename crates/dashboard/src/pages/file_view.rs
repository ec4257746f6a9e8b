//! `/dashboard/sandboxes/{id}/files/view`: one file as an editor, a picture or a table.

use axum::extract::{Path, Query};
use axum::response::Response;
use maud::{Markup, html};

use super::files::{Wanted, crumbs, stat};
use super::sandbox::{Tab, head, path_of};
use crate::api::{encode, read};
use crate::failure::Failure;
use crate::guest::Guest;
use crate::page::{Page, Section};
use crate::show;
use crate::visit::Visit;

/// Larger files can only be downloaded.
const MAX_TEXT: u64 = 1 << 20;
/// Rows of a table that are shown.
const MAX_ROWS: usize = 500;
const MAX_COLUMNS: usize = 100;

enum Content {
    Picture,
    Table(Vec<Vec<String>>, String),
    Text(String),
    /// Too large, or not a text.
    Other(&'static str),
}

pub(super) async fn view(
    visit: Visit,
    Path(id): Path<String>,
    Query(wanted): Query<Wanted>,
) -> Result<Response, Failure> {
    let guest = Guest::find(&visit.api, &id).await?;
    let entry = stat(&guest, &wanted.path).await?;
    let content = content_of(&guest, &wanted.path, entry.size()).await?;
    let base = path_of(&id);
    let directory = wanted.path.rsplit_once('/').map_or("/", |(directory, _)| directory);
    let name = wanted.path.rsplit('/').next().unwrap_or_default();
    let raw = format!("{base}/files/raw?path={}", encode(&wanted.path));
    let content = html! {
        (head(&visit, &id, &guest.details, Tab::Files))
        div .title {
            (crumbs(&id, directory))
            h2 .file-name { (name) }
            span .muted { (show::bytes(entry.size())) }
            div .actions { a .button href=(raw) download { "Download" } }
        }
        (shown(&content, &base, &wanted.path, &raw, name))
    };
    let page = Page::new(format!("{name} in {id}"), Section::Sandboxes).style("files.css").script("editor.js");
    Ok(page.show(&visit, content))
}

async fn content_of(guest: &Guest, path: &str, size: u64) -> Result<Content, Failure> {
    if image_type(path).is_some() {
        return Ok(Content::Picture);
    }
    if size > MAX_TEXT {
        return Ok(Content::Other("This file is too large to be shown. Download it."));
    }
    let (_, bytes) = read(guest.read_file(path).await?).await?;
    let Ok(text) = String::from_utf8(bytes) else {
        return Ok(Content::Other("This file is not a text. Download it."));
    };
    if text.contains('\0') {
        return Ok(Content::Other("This file is not a text. Download it."));
    }
    let separator = match ending(path).as_str() {
        "csv" => Some(','),
        "tsv" => Some('\t'),
        _ => None,
    };
    Ok(match separator {
        Some(separator) => Content::Table(rows_of(&text, separator), text),
        None => Content::Text(text),
    })
}

fn shown(content: &Content, base: &str, path: &str, raw: &str, name: &str) -> Markup {
    match content {
        Content::Picture => html! { img .picture src=(raw) alt={ "The picture " (name) }; },
        Content::Other(reason) => show::empty(reason),
        Content::Text(text) => editor(base, path, text),
        Content::Table(rows, text) => html! {
            (table(rows))
            details { summary { "Edit as text" } (editor(base, path, text)) }
        },
    }
}

fn editor(base: &str, path: &str, text: &str) -> Markup {
    // Browsers drop the first line break of a text area, and turn all others into plain ones.
    let newline = if text.contains("\r\n") { "crlf" } else { "lf" };
    html! {
        div .editor data-save={ (base) "/files/upload?path=" (encode(path)) } data-ending=(ending(path)) data-newline=(newline) {
            pre .numbers aria-hidden="true" {}
            pre .colors aria-hidden="true" {}
            textarea aria-label="Content of the file" spellcheck="false" autocapitalize="off" autocomplete="off" wrap="off" {
                "\n" (text)
            }
        }
        div .editor-bar {
            button .primary type="button" data-save-file { "Save" }
            span #saved .muted role="status" {}
            span .hint { kbd { "Ctrl+S" } " saves" }
        }
    }
}

fn table(rows: &[Vec<String>]) -> Markup {
    html! {
        div .scroll .sheet tabindex="0" role="region" aria-label="Table" {
            table {
                @if let Some(first) = rows.first() { thead { tr { @for cell in first { th scope="col" { (cell) } } } } }
                tbody { @for row in rows.iter().skip(1).take(MAX_ROWS) { tr { @for cell in row { td { (cell) } } } } }
            }
        }
        @if rows.len() > MAX_ROWS + 1 { p .hint { "The first " (MAX_ROWS) " of " (rows.len() - 1) " rows." } }
    }
}

/// The cells of a text with separators. Quoted cells may contain separators, line breaks and doubled quotes.
fn rows_of(text: &str, separator: char) -> Vec<Vec<String>> {
    let mut rows = vec![vec![String::new()]];
    let mut is_quoted = false;
    let mut rest = text.chars().filter(|character| *character != '\r').peekable();
    while let Some(character) = rest.next() {
        let Some(cell) = rows.last_mut().and_then(|row| row.last_mut()) else { break };
        match character {
            '"' if is_quoted && rest.peek() == Some(&'"') => {
                rest.next();
                cell.push('"');
            }
            '"' if is_quoted => is_quoted = false,
            '"' if cell.is_empty() => is_quoted = true,
            character if character == separator && !is_quoted => {
                if let Some(row) = rows.last_mut().filter(|row| row.len() < MAX_COLUMNS) {
                    row.push(String::new());
                }
            }
            '\n' if !is_quoted => rows.push(vec![String::new()]),
            character => cell.push(character),
        }
    }
    if rows.last().is_some_and(|row| row.iter().all(String::is_empty)) {
        rows.pop();
    }
    rows
}

fn ending(path: &str) -> String {
    let name = path.rsplit('/').next().unwrap_or_default();
    name.rsplit_once('.').map_or_else(|| name.to_lowercase(), |(_, ending)| ending.to_lowercase())
}

/// The type of a picture that browsers can show. They run nothing in pictures.
pub(super) fn image_type(path: &str) -> Option<&'static str> {
    Some(match ending(path).as_str() {
        "png" => "image/png",
        "jpg" | "jpeg" => "image/jpeg",
        "gif" => "image/gif",
        "webp" => "image/webp",
        "avif" => "image/avif",
        "bmp" => "image/bmp",
        "ico" => "image/x-icon",
        "svg" => "image/svg+xml",
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tables_are_read_with_quotes() {
        assert_eq!(rows_of("a,b\r\n1,\"x, \"\"y\"\"\nz\"\n", ','), [vec!["a", "b"], vec!["1", "x, \"y\"\nz"]]);
        assert_eq!(rows_of("a\tb\n\n", '\t'), [vec!["a", "b"], vec![""]]);
        assert!(rows_of("", ',').is_empty());
        assert_eq!(rows_of(&",".repeat(1000), ',').first().map(Vec::len), None);
        assert_eq!(rows_of(&"x,".repeat(1000), ',')[0].len(), MAX_COLUMNS);
    }

    #[test]
    fn only_pictures_are_shown_as_pictures() {
        assert_eq!(image_type("/a/B.PNG"), Some("image/png"));
        for path in ["/a/b.html", "/a.png/b", "png", "/a/b.xhtml", "/a/b.svg.html"] {
            assert_eq!(image_type(path), if path == "png" { Some("image/png") } else { None }, "{path}");
        }
    }
}
