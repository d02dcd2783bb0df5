//! An HTTP file server on the loopback address, with the faults that a test requests.

use std::collections::HashMap;
use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

/// The answer to a request.
#[derive(Clone)]
pub enum Answer {
    /// The file, or the requested range if it is of the same version.
    File(Vec<u8>),
    /// This many first bytes of the right answer, then the connection closes.
    Cut(Vec<u8>, usize),
    /// This many first bytes, then nothing for a minute.
    Stall(Vec<u8>, usize),
    /// The whole file, regardless of the request.
    Whole(Vec<u8>),
    /// The requested range, but starting at a different byte.
    OtherRange(Vec<u8>),
    /// An error status without a file.
    Status(&'static str),
    /// A redirect to this address.
    Redirect(String),
}

/// A request: the path, and the values of Range and If-Range.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Request {
    pub path: String,
    pub range: Option<String>,
    pub if_range: Option<String>,
}

/// A server, and the requests that it has received.
pub struct Server {
    pub url: String,
    asked: Arc<Mutex<Vec<Request>>>,
}

impl Server {
    /// Answers each request for a path with the next of its answers; once they run out, repeats the
    /// last one.
    pub fn start(answers: HashMap<String, Vec<Answer>>) -> Server {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let asked = Arc::new(Mutex::new(Vec::new()));
        let requests = asked.clone();
        let answers = Arc::new(Mutex::new(answers));
        thread::spawn(move || {
            for stream in listener.incoming() {
                let (requests, answers) = (requests.clone(), answers.clone());
                thread::spawn(move || {
                    let stream = stream.unwrap();
                    let request = read(&stream);
                    requests.lock().unwrap().push(request.clone());
                    let answer = match answers.lock().unwrap().get_mut(&request.path) {
                        Some(answers) if answers.len() > 1 => answers.remove(0),
                        Some(answers) => answers[0].clone(),
                        None => Answer::Status("404 Not Found"),
                    };
                    // A client that has received enough closes the connection.
                    let _ = write(stream, &request, &answer);
                });
            }
        });
        Server { url, asked }
    }

    pub fn asked(&self) -> Vec<Request> {
        self.asked.lock().unwrap().clone()
    }
}

fn read(stream: &TcpStream) -> Request {
    let mut lines = BufReader::new(stream).lines().map(Result::unwrap);
    let path = lines.next().unwrap().split(' ').nth(1).unwrap().to_owned();
    let (mut range, mut if_range) = (None, None);
    for line in lines.take_while(|line| !line.is_empty()) {
        let (name, value) = line.split_once(": ").unwrap();
        match name.to_ascii_lowercase().as_str() {
            "range" => range = Some(value.to_owned()),
            "if-range" => if_range = Some(value.to_owned()),
            _ => {}
        }
    }
    Request { path, range, if_range }
}

/// The ETag of a version of a file.
pub fn etag(file: &[u8]) -> String {
    format!("\"{}-{}\"", file.len(), file.iter().map(|&byte| u64::from(byte)).sum::<u64>())
}

fn write(mut stream: TcpStream, request: &Request, answer: &Answer) -> std::io::Result<()> {
    let (file, end) = match answer {
        Answer::File(file) | Answer::Whole(file) | Answer::OtherRange(file) => (file, usize::MAX),
        Answer::Cut(file, end) | Answer::Stall(file, end) => (file, *end),
        Answer::Status(status) => {
            write!(
                stream,
                "HTTP/1.1 {status}\r\nContent-Length: 3\r\nConnection: close\r\n\r\nno\n"
            )?;
            return Ok(());
        }
        Answer::Redirect(to) => {
            write!(
                stream,
                "HTTP/1.1 302 Found\r\nLocation: {to}\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
            )?;
            return Ok(());
        }
    };
    let start = request
        .range
        .as_ref()
        .map(|range| range["bytes=".len()..range.len() - 1].parse::<usize>().unwrap());
    let same = request.if_range.as_ref().is_none_or(|tag| *tag == etag(file));
    let body = match (answer, start) {
        (Answer::Whole(_), _) | (_, None) => {
            write!(stream, "HTTP/1.1 200 OK\r\n")?;
            &file[..]
        }
        (_, Some(_)) if !same => {
            write!(stream, "HTTP/1.1 200 OK\r\n")?;
            &file[..]
        }
        (_, Some(start)) if start >= file.len() => {
            write!(
                stream,
                "HTTP/1.1 416 Range Not Satisfiable\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
            )?;
            return Ok(());
        }
        (_, Some(start)) => {
            let start = if matches!(answer, Answer::OtherRange(_)) { start + 1 } else { start };
            let (last, size) = (file.len() - 1, file.len());
            write!(
                stream,
                "HTTP/1.1 206 Partial Content\r\nContent-Range: bytes {start}-{last}/{size}\r\n"
            )?;
            &file[start..]
        }
    };
    write!(
        stream,
        "ETag: {}\r\nContent-Length: {}\r\nConnection: close\r\n\r\n",
        etag(file),
        body.len()
    )?;
    stream.write_all(&body[..end.min(body.len())])?;
    stream.flush()?;
    if matches!(answer, Answer::Stall(..)) {
        thread::sleep(Duration::from_secs(3000));
    }
    Ok(())
}
