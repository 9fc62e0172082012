//! The pieces of a page: head, sections, figures with their pixels inside, tables.

use std::fmt::Write;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use image::RgbImage;

use crate::{Result, canvas};

const STYLE: &str = include_str!("style.css");

/// A page in the making.
pub struct Page {
    html: String,
}

impl Page {
    /// With a title.
    #[must_use]
    pub fn new(title: &str) -> Self {
        let title = escape(title);
        let html = format!(
            "<!doctype html>\n<html lang=en><meta charset=utf-8><meta name=viewport content=\"width=device-width\">\
             <title>daps: {title}</title>\n<style>{STYLE}</style>\n<main><h1>{title}</h1>\n"
        );
        Self { html }
    }

    /// A paragraph of HTML.
    pub fn lead(&mut self, html: &str) {
        self.push(&format!("<p class=lead>{html}</p>"));
    }

    /// A box with what a reader should know first.
    pub fn warnings(&mut self, warnings: &[String]) {
        if !warnings.is_empty() {
            let items: String = warnings.iter().map(|w| format!("<li>{}</li>", escape(w))).collect();
            self.push(&format!("<ul class=warning>{items}</ul>"));
        }
    }

    /// A headed section of HTML.
    pub fn section(&mut self, title: &str, html: &str) {
        self.push(&format!("<section><h2>{title}</h2>{html}</section>"));
    }

    /// Something to unfold.
    pub fn details(&mut self, title: &str, html: &str) {
        self.push(&format!("<details><summary>{title}</summary>{html}</details>"));
    }

    /// The page.
    #[must_use]
    pub fn finish(mut self) -> String {
        self.push(&format!("<p class=foot>daps {}</p></main></html>", env!("CARGO_PKG_VERSION")));
        self.html
    }

    fn push(&mut self, html: &str) {
        let _ = writeln!(self.html, "{html}");
    }
}

/// Text that a page shows as it is.
#[must_use]
pub fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

/// A picture with a caption; `class` says how large: small, large or wide.
pub fn figure(caption: &str, picture: &RgbImage, class: &str) -> Result<String> {
    let data = STANDARD.encode(canvas::png(picture)?);
    let (w, h, caption) = (picture.width(), picture.height(), escape(caption));
    Ok(format!(
        "<figure class={class}><img width={w} height={h} alt=\"{caption}\" src=\"data:image/png;base64,{data}\">\
         <figcaption>{caption}</figcaption></figure>"
    ))
}

/// A table; cells are HTML, all but the first column numbers.
#[must_use]
pub fn table(head: &[&str], rows: &[Vec<String>]) -> String {
    let heads: String = head.iter().map(|h| format!("<th>{h}</th>")).collect();
    let row = |cells: &Vec<String>| {
        format!("<tr>{}</tr>", cells.iter().map(|c| format!("<td>{c}</td>")).collect::<String>())
    };
    format!("<table><tr>{heads}</tr>{}</table>", rows.iter().map(row).collect::<String>())
}
