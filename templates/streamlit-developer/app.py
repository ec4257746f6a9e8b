import streamlit

streamlit.title("Hello from Streamlit")
