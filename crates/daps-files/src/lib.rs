//! Arrays and pictures from files that users bring: read within limits, and refused in one sentence that has no path in it
//! (who asked knows the path, and says it); and files that are written whole or not at all.

mod array;
mod error;
mod npy;
mod picture;
mod place;
mod write;

pub use array::{Choice, as_pictures, beyond_pictures, ending, is_array, read_array};
pub use error::{Error, Result};
pub use npy::parse as parse_npy;
pub use picture::{
    ENDINGS, Header, MOST_PIXELS, Picture, header, is_picture, on_white, open, pictures_in, read,
};
pub use place::place;
pub use write::write;
