//! A report as a list of pieces, written once as Markdown and once as a page with its pictures inside.

use std::fmt::Write;
use std::path::Path;

use daps::report::{Page, details, figure, rich, table, unbroken};
use daps::{Error, Result};

/// A piece of a report.
pub(super) enum Piece {
    /// A headline.
    Heading(String),
    /// A paragraph.
    Paragraph(String),
    /// Short lines.
    List(Vec<String>),
    /// A head, and rows of cells.
    Table(Vec<String>, Vec<Vec<String>>),
    /// A title, and a table that few readers need: a page shows it when it is asked for.
    More(String, Vec<String>, Vec<Vec<String>>),
    /// A drawing: its file, and the SVG itself.
    Drawing(String, String),
    /// A caption and the picture's file within the directory.
    Picture(String, String),
}

/// A title and what follows.
pub(super) struct Document {
    pub title: String,
    pub pieces: Vec<Piece>,
}

impl Document {
    /// As Markdown, with links to the files beside it.
    pub fn markdown(&self) -> String {
        // Labels and titles are words: what looks like a tag is none.
        let plain = |words: &str| words.replace('<', "&lt;");
        let mut text = format!("# {}\n", plain(&self.title));
        let cell = |c: &String| plain(c).replace('|', "\\|").replace('\n', " ");
        let line =
            |cells: &[String]| format!("| {} |\n", cells.iter().map(cell).collect::<Vec<_>>().join(" | "));
        let lines_of = |head: &[String], rows: &[Vec<String>]| {
            let rule = format!("|---|{}\n", "---:|".repeat(head.len().saturating_sub(1)));
            format!("{}{rule}{}", line(head), rows.iter().map(|r| line(r)).collect::<String>())
        };
        for piece in &self.pieces {
            let _ = match piece {
                Piece::Heading(title) => write!(text, "\n## {}\n", plain(title)),
                Piece::Paragraph(words) => write!(text, "\n{}\n", plain(words)),
                Piece::List(lines) => {
                    write!(
                        text,
                        "\n{}",
                        lines.iter().map(|l| format!("- {}\n", plain(l))).collect::<String>()
                    )
                }
                Piece::Table(head, rows) => write!(text, "\n{}", lines_of(head, rows)),
                Piece::More(title, head, rows) => {
                    write!(text, "\n{}:\n\n{}", plain(title), lines_of(head, rows))
                }
                Piece::Drawing(file, _) => write!(text, "\n![]({file})\n"),
                Piece::Picture(caption, file) => {
                    write!(text, "\n{}\n\n![]({file})\n", plain(caption))
                }
            };
        }
        text
    }

    /// As a page that needs no other file.
    pub fn html(&self, directory: &Path) -> Result<String> {
        let mut page = Page::new(&self.title);
        let mut section: Option<(String, String)> = None;
        for piece in &self.pieces {
            let html = match piece {
                Piece::Heading(title) => {
                    if let Some((title, html)) = section.replace((rich(title), String::new())) {
                        page.section(&title, &html);
                    }
                    continue;
                }
                Piece::Paragraph(words) if section.is_none() => {
                    page.lead(&rich(words));
                    continue;
                }
                Piece::Paragraph(words) => format!("<p>{}</p>", rich(words)),
                Piece::List(lines) => {
                    let items: String = lines.iter().map(|l| format!("<li>{}</li>", rich(l))).collect();
                    format!("<ul>{items}</ul>")
                }
                Piece::Table(head, rows) => table_of(head, rows),
                Piece::More(title, head, rows) => details(&rich(title), &table_of(head, rows)),
                Piece::Drawing(_, svg) => format!("<div class=drawing>{svg}</div>"),
                Piece::Picture(caption, file) => {
                    let path = directory.join(file);
                    let picture = image::open(&path).map_err(|e| Error::content(&path, e))?;
                    figure(caption, &picture.to_rgb8(), "wide")?
                }
            };
            match &mut section {
                Some((_, inside)) => *inside += &html,
                None => page.push(&html),
            }
        }
        if let Some((title, html)) = section {
            page.section(&title, &html);
        }
        Ok(page.finish())
    }
}

/// A table that breaks its lines where it has to.
fn table_of(head: &[String], rows: &[Vec<String>]) -> String {
    let heads: Vec<String> = head.iter().map(|h| rich(h)).collect();
    let heads: Vec<&str> = heads.iter().map(String::as_str).collect();
    let cells = |row: &Vec<String>| row.iter().map(|c| unbroken(&rich(c))).collect();
    let rows: Vec<Vec<String>> = rows.iter().map(cells).collect();
    format!("<div class=wide>{}</div>", table(&heads, &rows))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_forms_have_all_pieces_and_a_page_has_no_raw_marks() {
        let words = |list: &[&str]| list.iter().map(|w| (*w).to_owned()).collect::<Vec<_>>();
        let document = Document {
            title: "A title".into(),
            pieces: vec![
                Piece::Paragraph("Run `daps demo`.".into()),
                Piece::Heading("Numbers".into()),
                Piece::List(words(&["needs `daps weights get lpips`"])),
                Piece::Table(
                    words(&["", "PSNR"]),
                    vec![words(&["daps", "**27.1**"]), words(&["tv", "2 ± 1"])],
                ),
                Piece::More(
                    "Further numbers".into(),
                    words(&["", "LPIPS: `get`"]),
                    vec![words(&["daps", "0.1"])],
                ),
            ],
        };
        let page = document.html(Path::new("")).unwrap();
        let body = page.split("</style>").nth(1).unwrap();
        assert!(!body.contains('`') && !body.contains("**"), "{body}");
        for part in ["<p class=lead>Run <code>daps demo</code>.</p>", "<b>27.1</b>", "2&nbsp;±&nbsp;1"] {
            assert!(body.contains(part), "{part} in {body}");
        }
        assert!(
            body.contains("<details><summary>Further numbers</summary><div class=wide><table>"),
            "{body}"
        );
        let text = document.markdown();
        assert!(text.contains("\n| daps | **27.1** |\n| tv | 2 ± 1 |\n"), "{text}");
        assert!(
            text.contains("\nFurther numbers:\n\n|  | LPIPS: `get` |\n|---|---:|\n| daps | 0.1 |\n"),
            "{text}"
        );
    }
}
