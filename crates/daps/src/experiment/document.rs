//! A report as a list of pieces, written once as Markdown and once as a page with its pictures inside.

use std::fmt::Write;
use std::path::Path;

use crate::report::{Page, escape, figure, table};
use crate::{Error, Result};

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
                Piece::Table(head, rows) => {
                    let line = |cells: &[String]| {
                        format!("| {} |\n", cells.iter().map(cell).collect::<Vec<_>>().join(" | "))
                    };
                    let rule = format!("|---|{}\n", "---:|".repeat(head.len().saturating_sub(1)));
                    let rows: String = rows.iter().map(|r| line(r)).collect();
                    write!(text, "\n{}{rule}{rows}", line(head))
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
                    if let Some((title, html)) = section.replace((escape(title), String::new())) {
                        page.section(&title, &html);
                    }
                    continue;
                }
                Piece::Paragraph(words) => format!("<p>{}</p>", escape(words)),
                Piece::List(lines) => {
                    let items: String = lines.iter().map(|l| format!("<li>{}</li>", escape(l))).collect();
                    format!("<ul>{items}</ul>")
                }
                Piece::Table(head, rows) => {
                    let heads: Vec<String> = head.iter().map(|h| escape(h)).collect();
                    let heads: Vec<&str> = heads.iter().map(String::as_str).collect();
                    let bold = |c: &String| match c.strip_prefix("**").and_then(|c| c.strip_suffix("**")) {
                        Some(inner) => format!("<b>{}</b>", escape(inner)),
                        None => escape(c),
                    };
                    let rows: Vec<Vec<String>> = rows.iter().map(|r| r.iter().map(bold).collect()).collect();
                    format!("<div class=wide>{}</div>", table(&heads, &rows))
                }
                Piece::Drawing(_, svg) => format!("<div class=drawing>{svg}</div>"),
                Piece::Picture(caption, file) => {
                    let path = directory.join(file);
                    let picture = image::open(&path).map_err(|e| Error::content(&path, e))?;
                    figure(caption, &picture.to_rgb8(), "wide")?
                }
            };
            match &mut section {
                Some((_, inside)) => *inside += &html,
                None => page.lead(&html),
            }
        }
        if let Some((title, html)) = section {
            page.section(&title, &html);
        }
        Ok(page.finish())
    }
}
